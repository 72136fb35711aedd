"""What several folders of tests share: Triton's mode, Hypothesis' profile, sample targets and campaigns."""

import gc
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Values
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

# Kernels run in Triton's interpreter. Triton reads this when the first kernel is decorated, which imports below may do.
os.environ.setdefault("TRITON_INTERPRET", "1")
# As in a worker: with several threads, MKL adds float64 numbers in an order that changes from call to call.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import HealthCheck, settings

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence, Strides
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.events import Event, FailureChanged
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.engine.preloaded import PROGRAM
from fuzz_attn.errors import BudgetSpentInterrupt
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.mask_gaps import Explanation
from fuzz_attn.strategies.covering_arrays import pairwise
from fuzz_attn.workers.fork_server import VARIABLE, fork_server, forked, kind_of, worker_environment

# No test may fail by chance or on a slow machine: Hypothesis draws the same examples each time, and measures no time.
# With `--hypothesis-seed`, as at night, they are others and more.
settings.register_profile(
    "reproducible",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("seeded", settings.get_profile("reproducible"), derandomize=False, max_examples=400)
settings.load_profile("reproducible")


def pytest_configure(config: pytest.Config) -> None:
    """Let ``--hypothesis-seed`` choose other examples."""
    config.addinivalue_line("markers", "pairwise(**axes): run with rows that hold each two values of two arguments")
    config.addinivalue_line("markers", "slow: run by `make slow`, and by `make test` only where it is named")
    config.addinivalue_line("markers", "sampled(every): of the rows of this test only each so many is not slow")
    if config.getoption("--hypothesis-seed") is not None:
        settings.load_profile("seeded")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out, unless ``-m`` chooses or a test is named: then all that was asked for runs."""
    _mark_rows(items)
    if config.getoption("markexpr") or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def _mark_rows(items: Iterable[pytest.Item]) -> None:
    """Mark as slow the rows that the marker ``sampled`` leaves out, the same ones each time."""
    rows: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None:
            function = item.nodeid.partition("[")[0]
            if rows[function] % sampled.args[0]:
                item.add_marker("slow")
            rows[function] += 1


def pytest_collection_finish() -> None:
    """Let the collector pass by thousands of tests and modules, which live to the end: it took 3 % of all CPU time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter's end collect all: Triton's bindings report what is left."""
    gc.unfreeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test marked ``pairwise`` rows of its arguments in which each two values of any two of them occur together.

    An axis is a sequence of values, or a dictionary whose keys name them. The whole product has many times more rows.
    """
    for mark in metafunc.definition.iter_markers("pairwise"):
        axes = [_named_values(axis) for axis in mark.kwargs.values()]
        rows = [
            [axis[index] for axis, index in zip(axes, row, strict=True)]
            for row in pairwise([[1] * len(axis) for axis in axes])
        ]
        parameters = [pytest.param(*(value for _, value in row), id="-".join(name for name, _ in row)) for row in rows]
        metafunc.parametrize(list(mark.kwargs), parameters)


def _named_values(axis: Mapping[str, Any] | Values[Any]) -> list[tuple[str, Any]]:
    return list(axis.items()) if isinstance(axis, Mapping) else [(str(value), value) for value in axis]


TARGETS = Path(__file__).parent / "sample_targets"
Judge = Callable[[Order], Answer]


TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables by which a terminal or a CI changes what is printed."""


@pytest.fixture(scope="session", autouse=True)
def same_terminal() -> Iterator[None]:
    """Let commands print the same in every terminal and CI."""
    with pytest.MonkeyPatch.context() as environment:
        for name in TERMINAL:
            environment.delenv(name, raising=False)
        environment.setenv("TERM", "xterm")
        yield


@contextmanager
def kept_environment() -> Iterator[None]:
    """Keep the environment for the tests that follow.

    Commands that run in this process change Triton's mode. Torch notes the folder of its compiler when that is
    imported, Ray a debugger, and a worker with other variables of Python or torch than the fork server would import
    torch again.
    """
    before = dict(os.environ)
    yield
    changed = {name for name, value in {*before.items()} ^ {*os.environ.items()} if not name.startswith("PYTEST_")}
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Keep the environment for the next test."""
    with kept_environment():
        yield


@pytest.fixture(scope="module", autouse=True)
def same_environment_of_modules() -> Iterator[None]:
    """Keep the environment for the next module, whatever the fixtures of this one have changed."""
    with kept_environment():
        yield


@pytest.fixture(scope="session", autouse=True)
def forks() -> Iterator[None]:
    """Let the workers that tests start be forks of one process that imports torch once, to the last test."""
    with fork_server(PROGRAM):
        yield
        path = os.environ.get(VARIABLE)
        assert path is None or Path(path).name == kind_of(worker_environment()), "no worker is a fork any more"


def _program_run(
    program: Path, *arguments: object, variables: Mapping[str, str] = {}, without: Values[str] = ()
) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in worker_environment().items() if name not in without} | {**variables}
    environment["PYTHONPATH"] = os.pathsep.join((environment["PYTHONPATH"], str(Path(__file__).parent)))
    command = [str(program), *map(str, arguments)]
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as errors:
        reading, writing = os.pipe()
        fork = forked((sys.executable, "-P", "-m", "forked_program"), environment, reading, reading, signal.SIGKILL)
        os.close(reading)
        assert fork is not None, "the tests' fork server does not serve this environment"
        with open(writing, "w", encoding="utf-8") as pipe:
            json.dump({"command": command, "printed": [out.name, errors.name]}, pipe)
        return subprocess.CompletedProcess(command, fork.wait(), out.read(), errors.read())


@pytest.fixture(scope="session")
def run_program() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that runs a Python file with arguments in a process of its own, and returns what it printed.

    The process is a fork of one that has imported torch, which would take two seconds each time. Keywords set variables
    of its environment, and leave some out.
    """
    return _program_run


def spec_of_target(name: str) -> str:
    """Return the specification of a function of tests/sample_targets, as ``--target`` takes it."""
    for path in (TARGETS / "torch_attention.py", TARGETS / "breaking.py"):
        if re.search(rf"^(def )?{name}\b", path.read_text(), re.MULTILINE):
            return f"{path}:{name}"
    return f"{TARGETS / 'misbehaving.py'}:{name}"


@pytest.fixture(scope="session")
def spec() -> Callable[[str], str]:
    """Return a function that takes the name of a target in tests/sample_targets and returns its specification."""
    return spec_of_target


@lru_cache(maxsize=32)
def _judge(name: str) -> Judge:
    # In the interpreter, in whose mode this process is. Refusals are failures, as in any other test.
    case_judge = load(Setup(spec_of_target(name), backend="interpreter", strict=True))
    case_judge.ready()
    return case_judge.judge


@pytest.fixture(scope="session")
def judge_of() -> Callable[[str], Judge]:
    """Return a function that takes the name of a target and returns its judge, in this process."""
    return _judge


@cache
def _module_at(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def module_at() -> Callable[[Path], ModuleType]:
    """Return a function that loads the Python file at a path, once: a module that several tests share."""
    return _module_at


@pytest.fixture(scope="session")
def visible_keys(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """Return the module tests/benchmarks/visible_keys.py, which counts the visible keys of a case."""
    return module_at(Path(__file__).parent / "benchmarks" / "visible_keys.py")


@pytest.fixture(scope="session")
def faults(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """Return the module tests/benchmarks/faults.py, which computes the outputs of kernels with one mistake."""
    return module_at(Path(__file__).parent / "benchmarks" / "faults.py")


@pytest.fixture(scope="session")
def case() -> AttentionCase:
    """Return a case with several sequences, heads, pages and strides."""
    return AttentionCase(
        sequences=(Sequence(3, 9), Sequence(0, 2), Sequence(1, 20)),
        heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=8),
        pages=PageLayout(block_size=4, spare_blocks=1, extra_columns=2),
        strides=Strides(out_token=3, out_head=1, block_table=2),
        padded_tokens=2,
    )


@pytest.fixture(scope="session")
def contradicted() -> Callable[[Iterable[Mask], str], list[Explanation]]:
    """Return a function that returns the explanations of gaps that the masks of a family's cases contradict."""

    def contradicted_by(masks: Iterable[Mask], family: str) -> list[Explanation]:
        pairs = [(entry, mask) for mask in masks for entry in mask_gaps.load_explanations().explanation]
        return [entry for entry, mask in pairs if entry.covers(mask, family) and set(entry.never) & set(mask.seen)]

    return contradicted_by


class UntilFirstFailure(Results):
    """The results of a campaign, whose budget they end when its first failure that is no chance is shrunk."""

    _ended = False

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if not isinstance(event, FailureChanged) or not event.done or event.same_as or self._ended:
            return
        if event.counterexample.confirmation != "flaky":  # which a wrong target may be by the addresses of its tensors
            self._ended = True
            raise BudgetSpentInterrupt


@pytest.fixture
def campaign(tmp_path: Path) -> Callable[..., Results]:
    """Return a function that runs one shard on a target in the test's folder; keywords replace fields of its plan.

    With ``until_failure`` it ends when the first failure that is no chance is shrunk. What its worker finds,
    ``explaining`` explains.
    """

    def run(
        name: str,
        *,
        worker: IsolatedWorker | None = None,
        explaining: IsolatedWorker | None = None,
        until_failure: bool = False,
        **changes: Any,
    ) -> Results:
        fields: dict[str, Any] = {
            "setup": Setup(spec_of_target(name)),
            "shard": 0,
            "shards": 1,
            "seed": 1,
            "max_time": None,
            "max_cases": None,
            "run_folder": tmp_path / "run",
            "fixtures": tmp_path / "counterexamples",
        }
        results = UntilFirstFailure() if until_failure else Results()
        Campaign(Plan(**(fields | changes)), results, worker, explaining=explaining).run()
        return results

    return run
