"""The pytest plugin: it runs fuzz tests in pytest's own processes.

It splits a test marked ``fuzz_attn`` (made by :func:`fuzz_attn.fuzz`) into one test for each shard. Its options are
those of the command line with the prefix ``--fuzz-``. pytest loads the plugin in every repository of an environment, so
it imports the heavier modules only where it needs them.
"""

from __future__ import annotations

import argparse
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fuzz_attn.api import CALLED_BY_PLUGIN, MARKER, SHARD
from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.engine.run_folder import counterexample_folder, folder_name, new_run_folder, prune
from fuzz_attn.errors import FuzzAttnError, OutputError
from fuzz_attn.operations.registry import FAMILIES

if TYPE_CHECKING:
    from fuzz_attn.engine.campaign import Plan

_RUN_FOLDER = pytest.StashKey[Path]()
_SEED = pytest.StashKey[int]()
_SEED_IS_GIVEN = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("fuzz_attn", "fuzzing of paged-attention kernels")
    group.addoption("--fuzz-target", metavar="T", help="target in place of the test's own")
    group.addoption(
        "--fuzz-family", choices=tuple(FAMILIES), help="kernel family (default: the one that fits the signature)"
    )
    group.addoption("--fuzz-backend", choices=BACKEND_NAMES, help="where Triton kernels run")
    group.addoption(
        "--fuzz-max-time",
        metavar="SECONDS",
        type=_positive(float),
        help="time limit of each fuzz test, shrinking included",
    )
    group.addoption(
        "--fuzz-max-cases", metavar="N", type=_positive(int), help="case limit of each fuzz test, all shards together"
    )
    group.addoption("--fuzz-seed", metavar="N", type=int, help="seed of the campaign (default: a random one, printed)")
    group.addoption(
        "--fuzz-workers", metavar="N", type=_positive(int), help="shards (default: one for each xdist worker)"
    )
    group.addoption(
        "--fuzz-run-folder", metavar="DIR", help="folder of the statistics (default: a new folder in reports/runs)"
    )
    group.addoption("--fuzz-out", metavar="DIR", help="output directory (default: reports/ and tests/counterexamples/)")


def _positive(number: type[int] | type[float]) -> Callable[[str], float]:
    """Return a parser of numbers above 0; argparse reports its error as one of usage."""

    def parse(text: str) -> float:
        value = number(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} must be above 0")
        return value

    parse.__name__ = number.__name__  # argparse prints it when the text is not a number
    return parse


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; choose the run's seed and folder, or take them from xdist's controller."""
    config.addinivalue_line("markers", f"{MARKER}(target, ...): a fuzz test, made by fuzz_attn.fuzz")
    shared = getattr(config, "workerinput", None)
    seed = config.getoption("--fuzz-seed")
    if shared is not None:
        config.stash[_SEED], folder = shared["fuzz_attn_seed"], shared["fuzz_attn_run_folder"]
    else:
        config.stash[_SEED] = secrets.randbelow(2**32) if seed is None else seed
        folder = config.getoption("--fuzz-run-folder") or _new_folder(config.getoption("--fuzz-out"))
    config.stash[_SEED_IS_GIVEN] = seed is not None
    config.stash[_RUN_FOLDER] = Path(folder)


def _new_folder(out: str | None) -> Path:
    try:
        return new_run_folder(out)
    except OutputError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the seed and the folder of the run to an xdist worker."""
    node.workerinput["fuzz_attn_seed"] = node.config.stash[_SEED]
    node.workerinput["fuzz_attn_run_folder"] = str(node.config.stash[_RUN_FOLDER])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each shard of a fuzz test."""
    if SHARD in metafunc.fixturenames:
        count = shards_of(metafunc.config)
        metafunc.parametrize(SHARD, range(count), indirect=True, ids=lambda shard: f"shard{shard}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the shard of a fuzz test, which takes no fixtures as arguments, so that it can be a method too."""
    if not hasattr(pyfuncitem.function, CALLED_BY_PLUGIN):
        return None
    run: Any = pyfuncitem.funcargs[SHARD]
    run()
    return True


def shards_of(config: pytest.Config) -> int:
    """Return the number of shards: that of the option, else one for each xdist worker, else one."""
    requested = config.getoption("--fuzz-workers")
    if requested is not None:
        return int(requested)
    shared = getattr(config, "workerinput", None)
    # Without workers, as with --collect-only, xdist still has its option; without xdist there is none.
    return int(shared["workercount"]) if shared else int(config.getoption("--numprocesses", default=None) or 1)


@pytest.fixture
def fuzz_attn_shard(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Return a function that runs one shard of a fuzz test and fails with the shrunk counterexample in words."""
    plan = plan_of(request)

    def run() -> None:
        reason = _failure(plan)
        if reason:
            pytest.fail(reason, pytrace=False)

    return run


def _failure(plan: Plan) -> str:
    """Run a shard; return its failures but the known ones as text, or nothing."""
    from fuzz_attn.engine.campaign import Campaign  # noqa: PLC0415 - loads Hypothesis
    from fuzz_attn.engine.events import all_of  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.engine.listeners.event_log import EventLog  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.engine.listeners.results import Results  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.engine.run_plan import started  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.report.failure import plain_text  # noqa: PLC0415 - loads rich
    from fuzz_attn.report.outcome import NOT_FOLLOWED  # noqa: PLC0415 - as above
    from fuzz_attn.report.printing import safe  # noqa: PLC0415 - as above

    results = Results()
    try:
        with EventLog(plan.run_folder / f"events-{plan.shard}.jsonl", plan.shard) as log:
            emit = all_of(results, log)
            emit(started(plan.setup.target, plan.seed, 1, plan.max_time, plan.max_cases))
            Campaign(plan, emit).run()
    except FuzzAttnError as error:
        failed = str(error)
    else:
        failed = ""
    report = results.report()
    found = [each for each in report.failures if each.fails]
    texts = [plain_text(each.counterexample, Path(each.path) if each.path else None) for each in found if each.followed]
    only_seen = [safe(f"{NOT_FOLLOWED}: {each.kind}: {each.message}") for each in found if not each.followed]
    problems = map(safe, [failed] if failed else report.problems)
    verdicts = (each.counterexample.verdict for each in found if each.followed)
    # The first line is all that a short summary shows.
    causes = [safe(verdict.explanation or f"{verdict.what}: {verdict.message}") for verdict in verdicts]
    return "\n\n".join((*(["; ".join(causes)] if causes else []), *texts, *only_seen, *problems))


def plan_of(request: pytest.FixtureRequest) -> Plan:
    """Return the plan of a shard: the marker's arguments, replaced by the options of the command line."""
    from fuzz_attn.binding.binding import binding_of  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.engine.campaign import Plan  # noqa: PLC0415 - loads Hypothesis
    from fuzz_attn.engine.orders import Setup  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.engine.run_plan import share_of  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.settings import (  # noqa: PLC0415 - loads msgspec
        DEFAULT_MAX_TIME,
        DEFAULT_MEMORY,
        bytes_of,
        load_settings,
    )

    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        raise pytest.UsageError(f"{request.node.name} takes fuzz_attn_shard without the {MARKER} marker")
    config, shards, settings = request.config, shards_of(request.config), load_settings(request.config.rootpath)
    target, family, backend, max_time, max_cases = (
        _argument(config, name, marker.kwargs) for name in ("target", "family", "backend", "max_time", "max_cases")
    )
    if max_time is None and max_cases is None:
        max_time, max_cases = settings.max_time, settings.max_cases
    if max_time is None and max_cases is None:
        max_time = DEFAULT_MAX_TIME
    seed = config.stash[_SEED]
    if settings.seed is not None and not config.stash[_SEED_IS_GIVEN]:
        seed = settings.seed
    out = config.getoption("--fuzz-out") or settings.out
    return Plan(
        setup=Setup(
            target=target,
            family=family,
            backend=backend or settings.backend or "auto",
            strict=bool(settings.strict),
            binding=binding_of(marker.kwargs.get("binding")),
            memory=bytes_of(settings.memory or DEFAULT_MEMORY),
        ),
        shard=request.param,
        shards=shards,
        seed=seed,
        max_time=max_time,
        max_cases=share_of(max_cases, request.param, shards),
        # Named by the test, because two tests may fuzz the same target.
        run_folder=config.stash[_RUN_FOLDER] / folder_name(_name_of(request.node)),
        fixtures=counterexample_folder(out),
    )


def _name_of(node: Any) -> str:
    """Return the name of a test with its parameters, which all of its shards share."""
    parameters = [part for part in node.callspec.id.split("-") if not re.fullmatch(r"shard\d+", part)]
    return "-".join((node.nodeid.partition("[")[0], *parameters))


def _argument(config: pytest.Config, name: str, marked: dict[str, Any]) -> Any:
    option = config.getoption(f"--fuzz-{name.replace('_', '-')}")
    return marked.get(name) if option is None else option


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the summary of each fuzzed target, from the statistics that the shards of all workers wrote."""
    folder = config.stash[_RUN_FOLDER]
    if hasattr(config, "workerinput") or not folder.exists():
        return
    from fuzz_attn.backends import kernel_coverage  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.engine.listeners.event_log import logs_in, report_of  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.engine.listeners.results import merged_reports, one_for_each_bug  # noqa: PLC0415 - loads msgspec
    from fuzz_attn.report.outcome import outcome  # noqa: PLC0415 - loads rich
    from fuzz_attn.report.printing import safe, text_of  # noqa: PLC0415 - loads rich
    from fuzz_attn.report.summary import render  # noqa: PLC0415 - loads rich

    shards = [report_of(log) for log in logs_in(folder)]
    covered = []
    for target in sorted({shard.target for shard in shards}):
        merged = merged_reports(shard for shard in shards if shard.target == target)
        if merged is not None:
            report = one_for_each_bug(merged)
            terminalreporter.write_line(text_of(outcome(report)))
            terminalreporter.write_line(text_of(render(report.statistics, everything=config.option.verbose > 0)))
            covered.append(report.statistics.coverage)
            for note in report.notes:
                terminalreporter.write_line(safe(f"Note: {note}"))
    if covered:
        kernel_coverage.save(covered, folder)
    prune(folder.parent)
