"""One run: `fuzz-attn run` as a user starts it, in fresh folders with empty caches, and what became of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine.events import FailureChanged, FailureFound, WorkerReady
from fuzz_attn.engine.failures.triage import class_of
from fuzz_attn.engine.listeners.event_log import StatisticsLine, logs_in, read_log
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.strategies.compile_keys import key_pool, value_pairs

POLL_SECONDS: Final = 0.02
LOG_SECONDS: Final = 0.2
"""The time between two looks at the event log of a whole run, which is one file on one machine."""
END_SECONDS: Final = 60.0
"""A run that is asked to end must have written its last statistics within this time."""
ENOUGH: Final = 20
"""Cases of a compile key that count as having tried it."""
NOT_INSTALLED: Final = "from fuzz_attn.cli.main import main; main()"
"""The program where only ``PYTHONPATH`` has the package."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Command(NamedTuple):
    """How a run is started; None for ``workers`` or ``seed`` leaves them to it. ``packages`` fills the cache folder."""

    target: str
    backend: str
    seed: int
    limit: float
    workers: int | None = None
    python_path: str = ""
    packages: Path | None = None
    wheel: Path | None = None
    """The wheel of a published package, for a machine that has it and no network."""
    cache: Path | None = None
    """A cache folder that other runs use too, for a warm start; None is an empty one."""
    cases: int | None = None
    """A limit of cases beside that of seconds."""

    def line(self, out: Path) -> list[str]:
        """Return the command line."""
        script = Path(sys.executable).with_name("fuzz-attn")
        program = [str(script)] if script.exists() else [sys.executable, "-P", "-c", NOT_INSTALLED]
        options = {"--target": self.target, "--backend": self.backend, "--seed": self.seed, "--max-time": self.limit}
        if self.workers is not None:
            options["--workers"] = self.workers
        if self.cases is not None:
            options["--max-cases"] = self.cases
        return [*program, "run", "--out", str(out), *(str(each) for pair in options.items() for each in pair)]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables of the process, whose caches are in a folder."""
        cache = self.cache or folder / "cache"
        if self.packages is not None:
            shutil.copytree(self.packages, cache / "published", dirs_exist_ok=True)
            cache.chmod(0o700)
            (cache / "published").chmod(0o700)
        if self.wheel is not None:
            package = cache / "published" / "-".join(self.wheel.name.split("-")[:2])
            package.mkdir(parents=True, mode=0o700)
            (package / self.wheel.name).symlink_to(self.wheel.resolve())
        kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        kept |= {"FUZZ_ATTN_CACHE": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
        return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (self.python_path, kept.get("PYTHONPATH", ""))))}


def first_failure(command: Command, folder: Path) -> dict[str, Any]:
    """Return the seconds until a run has saved a failure, CPU seconds until then, and what it had tried by then.

    The run is ended then. Without a failure in its time both are None.
    """
    out = folder / "out"
    found: dict[str, Any] = {"seconds": None, "cpu": None}

    def saved(elapsed: float, process: int) -> bool:
        if not any(out.glob("counterexamples/*/*.json")):
            return False
        found.update(seconds=round(elapsed, 3), cpu=round(cpu_seconds(process), 2))
        return True

    status = watched(command, folder, saved)
    tried = tried_by(out)
    return tried | found | {"status": status, "failures": len(tried["failures"])}


def whole_run(command: Command, folder: Path) -> dict[str, Any]:
    """Return what a run of the whole time had tried, with the seconds to each failure, and the exit status.

    Its CPU seconds are those of its last look at the log, shortly before its end.
    """
    notes = FailureNotes(folder / "out")
    status = watched(command, folder, notes)
    tried = tried_by(folder / "out")
    for failure, (seconds, cpu) in zip(tried["failures"], notes.seen, strict=False):
        failure.update(after=round(seconds, 3), cpu=round(cpu, 2))
    return {"status": status, "cpu": round(notes.cpu, 2)} | tried


class FailureNotes:
    """Notes when each failure came into the event log of a run: seconds and CPU seconds since its process started."""

    def __init__(self, out: Path) -> None:
        self.seen: list[tuple[float, float]] = []
        self.cpu = 0.0
        self._out = out
        self._read = 0
        self._next = 0.0

    def __call__(self, elapsed: float, process: int) -> bool:
        """Read what is new in the log, at most every ``LOG_SECONDS``; return False, as the run goes on."""
        if elapsed >= self._next:
            self._next = elapsed + LOG_SECONDS
            self.cpu = max(self.cpu, cpu_seconds(process))
            for log in logs_in(self._out / "runs"):
                with log.open("rb") as file:
                    file.seek(self._read)
                    whole = file.read().rpartition(b"\n")[0]
                self._read += len(whole)
                found = whole.count(b'{"event":"failure_found"')
                self.seen += [(elapsed, self.cpu)] * found
        return False


def watched(command: Command, folder: Path, over: Callable[[float, int], bool]) -> int:
    """Run a command until it ends or ``over`` is true for its seconds and its process id; return the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "printed.txt").open("wb") as printed:
        environment = command.environment(folder)
        began = time.monotonic()
        process = subprocess.Popen(
            command.line(folder / "out"),
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not over(time.monotonic() - began, process.pid):
                time.sleep(POLL_SECONDS)
            process.send_signal(signal.SIGTERM)
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def cpu_seconds(session: int) -> float:
    """Return the CPU seconds of the processes of a session, and of their children that have ended."""
    return sum(sum(map(int, fields[11:15])) for fields in _processes() if int(fields[3]) == session) / _TICKS


def _processes() -> Iterator[list[str]]:
    """Yield what the system says of each process from its state on."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text().rpartition(")")[2].split()


def tried_by(out: Path) -> dict[str, Any]:
    """Return the figures of a run's event log: its failures, and of its search the cases, keys, and pairs of values."""
    statistics, keys, domain = Statistics(""), dict[int, int](), Domain()
    known: dict[tuple[int, int], dict[str, Any]] = {}
    for line in (line for log in logs_in(out / "runs") for line in read_log(log)):
        if isinstance(line, StatisticsLine):
            statistics = line.statistics
            keys = statistics.compile_keys or keys
        elif isinstance(line, WorkerReady):
            domain = line.ready.domain
        elif isinstance(line, FailureFound):
            found = line.counterexample
            shown = {"classes": [class_of(found.verdict)], "message": found.verdict.message}
            after = {"after": round(line.seconds, 3), "cpu": None}
            known[line.shard, line.failure] = {"trigger": (), "file": found, **after, **shown}
        elif isinstance(line, FailureChanged):
            known[line.shard, line.failure]["trigger"] = line.counterexample.trigger
    return {"failures": [*known.values()]} | breadth(keys, domain) | figures(statistics)


def breadth(keys: dict[int, int], domain: Domain) -> dict[str, Any]:
    """Return how many compile keys were tried, with how many cases, and the parts of all pairs in them.

    The pairs are of the values of a key's fields, and of its features alone, each on or off, its mask and its path.
    """
    pool = key_pool(domain)
    tried = [key for key in pool if key.number in keys]
    every, seen = pairs_of(pool), pairs_of(tried)
    names = sorted({name for key in pool for name in key.features})
    features, seen_features = feature_pairs(pool, names), feature_pairs(tried, names)
    return {
        "keys": len(keys),
        "keys with 20 cases": sum(cases >= ENOUGH for cases in keys.values()),
        "most cases of a key": max(keys.values(), default=0),
        "pairs": round(len(seen) / len(every), 4),
        "pairs of features": round(len(seen_features) / len(features), 4),
    }


def pairs_of(keys: Iterable[CompileKey]) -> frozenset[object]:
    """Return all pairs of values that some key has."""
    return frozenset[object]().union(*map(value_pairs, keys))


def feature_pairs(keys: Iterable[CompileKey], names: Iterable[str]) -> frozenset[object]:
    """Return all pairs that some key has of these features, each on or off, its mask and its path."""
    found: set[object] = set()
    for key in keys:
        features = [(name, name in key.features) for name in names]
        found.update(combinations([*features, ("mask", key.mask), ("path", key.launch.path)], 2))
    return frozenset(found)


def figures(statistics: Statistics) -> dict[str, Any]:
    """Return the counts of a run that say what its time went to."""
    names = ("cases", "refused", "not_compiled", "kernels_ahead", "kernels_compiled", "waited", "judging")
    counts = {name: getattr(statistics, name) for name in names}
    return counts | {
        "run seconds": round(statistics.seconds, 3),
        "rate": round(statistics.cases / statistics.seconds, 1) if statistics.seconds else 0.0,
    }
