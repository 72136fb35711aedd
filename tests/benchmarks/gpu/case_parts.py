"""The parts of a warm case on a GPU: ``case_parts.py FAMILY CASES`` prints one JSON object for bench_gpu.py.

One process draws and judges the same cases twice, and the second time counts. Nothing waits for the GPU that would not
do so anyway: its time is part of where the host waits, which for the oracle is the judging.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from fuzz_attn.engine import schedule
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.operations.operation import RoundSize, derived_seed

PARTS: Final = ("draw", "tensors", "launch", "oracle", "judge", "rest", "all")
SEED: Final = 11
ROUND: Final = RoundSize(cases=0, keys=1, layouts=1, compiling=1)
"""Few kernels, because each has to be compiled first."""


class Clock:
    """Milliseconds by part for each case: time counts for the innermost running part."""

    def __init__(self) -> None:
        self.cases: list[dict[str, float]] = []
        self._case: defaultdict[str, float] = defaultdict(float)
        self._running = ["draw"]
        self._since = time.perf_counter()

    def switch(self, part: str | None) -> None:
        """Count the time so far, and from now on for a part; None goes back to the part before."""
        now = time.perf_counter()
        self._case[self._running[-1]] += (now - self._since) * 1e3
        self._since = now
        if part is None:
            self._running.pop()
        else:
            self._running.append(part)

    def end_case(self) -> None:
        """Count the time so far, and begin the next case."""
        self.switch("draw")
        self._running = ["draw"]
        self._case["all"] = sum(self._case.values())
        self.cases.append(dict(self._case))
        self._case.clear()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts for a part."""

        @wraps(function)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.switch(part)
            try:
                return function(*arguments, **keywords)
            finally:
                self.switch(None)

        return counted


def main(family: str, count: int) -> None:
    """Print median and 95th percentile of each part in milliseconds."""
    judge = load(Setup(family, backend="cuda"))
    ready = judge.ready()
    from fuzz_attn.properties import experiment, launch_properties  # noqa: PLC0415 - imports torch

    clock = Clock()
    places: tuple[tuple[Any, str, str], ...] = (
        (experiment, "materialise", "tensors"),
        (experiment, "attend", "oracle"),
        (experiment, "row_blocks", "oracle"),
        (experiment.Experiment, "launch_tensors", "launch"),
        (launch_properties, "judge", "judge"),
    )

    def attempt(case: Any, relation: str | None) -> None:
        clock.switch("rest")
        judge.judge(Order(case, relation))
        clock.end_case()

    with contextlib.ExitStack() as stack:
        for owner, name, part in places:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, clock.timed(part, original))
        for _ in range(2):
            clock.cases.clear()
            clock.switch("draw")
            seed = derived_seed(SEED, 0, 0)
            schedule.play_round(ready.domain, seed, count, attempt, ROUND)
    print(json.dumps({part: _tails([case.get(part, 0.0) for case in clock.cases]) for part in PARTS}))


def _tails(values: list[float]) -> tuple[float, float]:
    """Return median and 95th percentile."""
    most = sorted(values)
    return most[len(most) // 2], most[int(0.95 * len(most))]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
