"""A campaign on a GPU: ``campaign.py FAMILY SECONDS WARM WORKERS mps|turns`` prints a JSON object for bench_gpu.py.

It is `fuzz-attn run` with a listener that looks at the time of each case.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from fuzz_attn.engine.events import CaseJudged, Event, Finished
from fuzz_attn.engine.fuzz_run import run_and_log
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.run_plan import RunPlan

SEED: Final = 20261122


class Rates:
    """Cases, those after the first seconds, kernels, and how long cases took."""

    def __init__(self, warm: float) -> None:
        self._warm = warm
        self.first: float | None = None
        self.cases = self.late = self.compiled = self.loaded = 0
        self.compiling = self.judging = self.waited = 0.0
        self.seconds: list[float] = []

    def __call__(self, event: Event) -> None:
        """Count a case."""
        if isinstance(event, Finished):
            self.waited += event.waited
        if not isinstance(event, CaseJudged):
            return
        now = time.monotonic()
        self.compiled, self.loaded = self.compiled + event.compiled, self.loaded + event.loaded
        self.judging += event.seconds
        self.compiling += event.seconds * bool(event.compiled)
        if event.phase == "search":
            self.first = now if self.first is None else self.first
            self.cases += 1
            if now > self.first + self._warm:
                self.late += 1
                self.seconds.append(event.seconds)


def began() -> float:
    """Return when this process began, as a time of ``time.monotonic``: before its imports."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def main(family: str, seconds: float, warm: float, workers: int, *, mps: bool) -> None:
    """Print the figures of one campaign."""
    rates = Rates(warm)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        places = out / "reports" / "run", out / "counterexamples"
        plan = RunPlan(Setup(family, backend="cuda"), SEED, workers, seconds, None, *places, mps=mps)
        report = run_and_log(plan, rates)
    most = sorted(rates.seconds) or [0.0]
    figures: dict[str, Any] = {
        "start": (rates.first or time.monotonic()) - began(),
        "cases": rates.cases,
        "rate": rates.cases / seconds,
        "late": rates.late / max(1.0, seconds - warm),
        "p50": most[len(most) // 2] * 1e3,
        "p95": most[int(0.95 * len(most))] * 1e3,
        "compiled": rates.compiled,
        "loaded": rates.loaded,
        "compile share": rates.compiling / max(1e-9, rates.judging),
        "waited": rates.waited / (seconds * workers),
        "failures": [failure.message for failure in report.failures],
        "notes": report.notes,
        "errors": report.errors,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    _family, _seconds, _warm, _workers, _way = sys.argv[1:]
    main(_family, float(_seconds), float(_warm), int(_workers), mps=_way == "mps")
