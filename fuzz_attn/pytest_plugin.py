"""The pytest plugin: the one engine that runs campaigns, whether pytest or ``fuzz-attn run`` was typed.

A test marked ``fuzz_attn`` (made by :func:`fuzz_attn.fuzz`) becomes one test for each shard. The options carry the same
words as the command line's.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from fuzz_attn.api import MARKER
from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.case.families import Family
from fuzz_attn.errors import FuzzAttnError

if TYPE_CHECKING:
    from fuzz_attn.engine.campaign import Outcome, Plan

DEFAULT_MAX_TIME = 60.0
_RUN_FOLDER = pytest.StashKey[Path]()
_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in the command line's words."""
    group = parser.getgroup("fuzz_attn", "fuzzing of paged-attention kernels")
    group.addoption("--fuzz-target", metavar="T", help="fuzz this target instead of the test's own")
    group.addoption(
        "--fuzz-family", choices=get_args(Family), help="the target's family (default: the one that fits its signature)"
    )
    group.addoption("--fuzz-backend", choices=BACKEND_NAMES, help="where Triton kernels run")
    group.addoption(
        "--fuzz-max-time", metavar="SECONDS", type=_positive(float), help="time for each fuzz test, shrinking included"
    )
    group.addoption(
        "--fuzz-max-cases", metavar="N", type=_positive(int), help="cases for each fuzz test, all shards together"
    )
    group.addoption("--fuzz-seed", metavar="N", type=int, help="seed of the campaign (default: a new one, printed)")
    group.addoption(
        "--fuzz-workers", metavar="N", type=_positive(int), help="shards (default: one for each xdist worker)"
    )
    group.addoption(
        "--fuzz-run-folder", metavar="DIR", help="where statistics go (default: a new folder in reports/runs)"
    )
    group.addoption(
        "--fuzz-out", metavar="DIR", help="where everything goes (default: reports/, tests/counterexamples/)"
    )


def _positive(number: type[int] | type[float]) -> Callable[[str], float]:
    """Return what reads a number above 0; argparse turns its error into one of usage."""

    def read(text: str) -> float:
        value = number(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} must be above 0")
        return value

    read.__name__ = number.__name__  # argparse names it where the text is no number
    return read


def new_run_folder(out: str | Path | None) -> Path:
    """Return a folder of its own for a run that starts now, below ``out`` or below reports/."""
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path(out or "reports").resolve() / "runs" / f"{started}-{os.getpid()}"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and agree with all workers on the seed and the run's folder."""
    config.addinivalue_line("markers", f"{MARKER}(target, ...): a fuzz test, made by fuzz_attn.fuzz")
    shared = getattr(config, "workerinput", None)
    seed = config.getoption("--fuzz-seed")
    if shared is not None:
        config.stash[_SEED], folder = shared["fuzz_attn_seed"], shared["fuzz_attn_run_folder"]
    else:
        config.stash[_SEED] = secrets.randbelow(2**32) if seed is None else seed
        folder = config.getoption("--fuzz-run-folder") or new_run_folder(config.getoption("--fuzz-out"))
    config.stash[_RUN_FOLDER] = Path(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker the seed and the folder of the run."""
    node.workerinput["fuzz_attn_seed"] = node.config.stash[_SEED]
    node.workerinput["fuzz_attn_run_folder"] = str(node.config.stash[_RUN_FOLDER])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each shard of a fuzz test."""
    if "fuzz_attn_shard" in metafunc.fixturenames:
        count = shards_of(metafunc.config)
        metafunc.parametrize("fuzz_attn_shard", range(count), indirect=True, ids=lambda shard: f"shard{shard}")


def shards_of(config: pytest.Config) -> int:
    """Return the number of shards: as asked for, else one for each xdist worker, else one."""
    asked = config.getoption("--fuzz-workers")
    if asked is not None:
        return int(asked)
    shared = getattr(config, "workerinput", None)
    return int(shared["workercount"]) if shared else len(getattr(config.option, "tx", None) or [None])


class Shard:
    """One shard of a fuzz test, ready to run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def run(self) -> None:
        """Run the shard; fail the test with the shrunk counterexample in words."""
        reason = self._failure()
        if reason:
            pytest.fail(reason, pytrace=False)

    def _failure(self) -> str:
        from fuzz_attn.engine.campaign import Campaign  # noqa: PLC0415 - Hypothesis is loaded only where a shard runs

        try:
            outcome = Campaign(self.plan).run()
        except FuzzAttnError as error:
            return str(error)
        return "" if outcome.failure is None else _told(outcome)


def _told(outcome: Outcome) -> str:
    from fuzz_attn.report.failure import plain_text  # noqa: PLC0415 - rich is loaded only where something is printed

    assert outcome.failure is not None
    return plain_text(outcome.failure, outcome.path, outcome.also_seen)


@pytest.fixture
def fuzz_attn_shard(request: pytest.FixtureRequest) -> Shard:
    """Return the shard of a fuzz test: the marker's arguments, where the command line does not say otherwise."""
    from fuzz_attn.engine.campaign import Plan  # noqa: PLC0415 - as above
    from fuzz_attn.engine.messages import Setup  # noqa: PLC0415 - as above

    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        raise pytest.UsageError(f"{request.node.name} takes fuzz_attn_shard without the {MARKER} marker")
    config, shards = request.config, shards_of(request.config)
    asked = {
        name: _option(config, name, marker.kwargs) for name in ("target", "family", "backend", "max_time", "max_cases")
    }
    if asked["max_time"] is None and asked["max_cases"] is None:
        asked["max_time"] = DEFAULT_MAX_TIME
    out = config.getoption("--fuzz-out")
    return Shard(
        Plan(
            setup=Setup(target=asked["target"], family=asked["family"], backend=asked["backend"] or "auto"),
            shard=request.param,
            shards=shards,
            seed=config.stash[_SEED],
            max_time=asked["max_time"],
            max_cases=share_of(asked["max_cases"], request.param, shards),
            run_folder=config.stash[_RUN_FOLDER] / _folder_of(request.node),
            fixtures=Path(out) / "counterexamples" if out else Path("tests") / "counterexamples",
        )
    )


def _folder_of(node: Any) -> str:
    """Return a name for the folder of a fuzz test's shards: two tests may fuzz the same target."""
    return re.sub(r"[^\w.-]+", "-", node.nodeid.partition("[")[0]).strip("-.")


def _option(config: pytest.Config, name: str, marked: dict[str, Any]) -> Any:
    asked = config.getoption(f"--fuzz-{name.replace('_', '-')}")
    return marked.get(name) if asked is None else asked


def share_of(max_cases: int | None, shard: int, shards: int) -> int | None:
    """Return how many of the campaign's cases fall to one shard; the shares add up exactly."""
    if max_cases is None:
        return None
    return max_cases // shards + (shard < max_cases % shards)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the summary of each target that was fuzzed, from what the shards of all workers wrote."""
    folder = config.stash[_RUN_FOLDER]
    if hasattr(config, "workerinput") or not folder.exists():
        return
    from fuzz_attn.coverage import mask_coverage  # noqa: PLC0415 - as above
    from fuzz_attn.engine.statistics import merged, read_all  # noqa: PLC0415 - as above
    from fuzz_attn.report.plain_text import text_of  # noqa: PLC0415 - as above
    from fuzz_attn.report.summary import render  # noqa: PLC0415 - as above

    shards = read_all(folder)
    covered = []
    for target in sorted({shard.target for shard in shards}):
        together = merged(shard for shard in shards if shard.target == target)
        if together is not None:
            terminalreporter.write_line(text_of(render(together)))
            covered.append(together.coverage)
    if covered:
        mask_coverage.save(covered, folder)
