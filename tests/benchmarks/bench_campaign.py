"""The cost of one case of a default campaign in CPU seconds: drawing, tensors, launch, oracle, relations.

Run it with ``make bench``, or for one family with ``bench_campaign.py 960 unified``. One worker plays each round
several times. The fastest of them counts, without the first: all kernels are known then, and other load on the machine
matters least. CPU seconds of a child process need Linux. ``--json FILE`` also writes the rows.

A second run in one process measures the parts. Everything within a relation counts as ``relation``, and the rest of a
round as ``draw``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

from fuzz_attn.case.families import FAMILIES
from fuzz_attn.engine import schedule
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.operations.operation import derived_seed

CASES: Final = 480
REPEATS: Final = 3
SEED: Final = 11
PARTS: Final = ("draw", "tensors", "snapshot", "launch", "oracle", "judge", "relation", "rest")


class Cost(NamedTuple):
    """CPU seconds of some cases: in the parent, which draws, in its worker, and by part."""

    parent: float
    child: float
    parts: dict[str, float]


class MeasuredCampaign(Campaign):
    """A campaign that plays each round several times and keeps the CPU seconds of the fastest, with its worker's."""

    def _search(self) -> None:
        assert self.plan.max_cases is not None
        number_of_rounds = self.plan.max_cases // (1 + REPEATS) // schedule.ON_CPU.cases
        fastest = [self._fastest(number) for number in range(number_of_rounds)]
        self.seconds = sum(parent for parent, _ in fastest), sum(child for _, child in fastest)

    def _fastest(self, number: int) -> tuple[float, float]:
        self._round(number)
        return min((self._measured(number) for _ in range(REPEATS)), key=sum)

    def _measured(self, number: int) -> tuple[float, float]:
        before = time.process_time(), seconds_of_worker(self.worker)
        self._round(number)
        return time.process_time() - before[0], seconds_of_worker(self.worker) - before[1]


def seconds_of_worker(worker: IsolatedWorker) -> float:
    """Return the CPU seconds of a worker's process and of all below it."""
    process = worker.process
    assert process is not None
    return _seconds_below(process.pid)


def _seconds_below(pid: int) -> float:
    place = Path("/proc") / str(pid)
    own = int((place / "schedstat").read_text().split()[0]) / 1e9
    children = (place / "task" / str(pid) / "children").read_text().split()
    return own + sum(_seconds_below(int(child)) for child in children)


class Clock:
    """CPU seconds by part: time counts for the innermost running part, but within a relation for the relation."""

    def __init__(self) -> None:
        self._running = ["draw"]
        self.start()

    def start(self) -> None:
        """Start counting from 0."""
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.process_time()

    def stop(self) -> dict[str, float]:
        """Return the counted seconds."""
        self._switch()
        return self._seconds

    @contextlib.contextmanager
    def running(self, part: str) -> Iterator[None]:
        """Count the time within the context for a part."""
        self._switch()
        self._running.append(self._running[-1] if self._running[-1] == "relation" else part)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def _switch(self) -> None:
        now = time.process_time()
        self._seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts for a part."""

        @wraps(function)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            with self.running(part):
                return function(*arguments, **keywords)

        return counted


def campaign_seconds(target: str, cases: int) -> tuple[float, float]:
    """Return the CPU seconds of a warm campaign's search, in this process and in its worker."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        plan = Plan(Setup(target), 0, 1, SEED, None, (1 + REPEATS) * cases, place, place)
        results = Results()
        measured = MeasuredCampaign(plan, results)
        measured.run()
    assert results.failure is None
    assert results.statistics.cases == (1 + REPEATS) * cases
    return measured.seconds


def parts_of(target: str, cases: int) -> dict[str, float]:
    """Return the CPU seconds of each part of a campaign's cases, drawn and judged in this process."""
    judge = load(Setup(target))
    ready = judge.ready()
    from fuzz_attn.properties import check, experiment, launch_properties  # noqa: PLC0415 - as above

    clock = Clock()
    places: tuple[tuple[Any, str, str], ...] = (
        (experiment, "materialise", "tensors"),
        (experiment, "attend", "oracle"),
        (experiment, "snapshot_of", "snapshot"),
        (experiment, "still_holds", "snapshot"),
        (experiment.Experiment, "launch_tensors", "launch"),
        (experiment, "row_blocks", "oracle"),
        (launch_properties, "judge", "judge"),
        (check, "comparison_of", "relation"),
    )

    def attempt(case: Any, relation: str | None) -> None:
        with clock.running("rest"):
            assert judge.judge(Order(case, relation)).verdict.passed

    def played(number: int) -> dict[str, float]:
        clock.start()
        schedule.play_round(ready.domain, derived_seed(SEED, 0, number), schedule.ON_CPU.cases, attempt)
        return clock.stop()

    total: defaultdict[str, float] = defaultdict(float)
    with contextlib.ExitStack() as stack:
        for owner, name, part in places:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, clock.timed(part, original))
        for number in range(cases // schedule.ON_CPU.cases):
            played(number)
            for part, seconds in min(
                (played(number) for _ in range(REPEATS)), key=lambda parts: sum(parts.values())
            ).items():
                total[part] += seconds
    return total


def main(cases: int, targets: tuple[str, ...], file: Path | None) -> None:
    """Print the cost of a case for each family, and for all of them."""
    print(f"{cases} cases of a default campaign of each family, seed {SEED}, warm; CPU milliseconds per case")
    print(f"{'family':8} {'parent':>7} {'child':>7} {'cases/s':>8}  {' '.join(f'{part:>8}' for part in PARTS)}")
    everything: list[Cost] = []
    for target in targets:
        parent, child = campaign_seconds(target, cases)
        everything.append(Cost(parent, child, parts_of(target, cases)))
        _print(target, cases, everything[-1])
    parts = {part: sum(cost.parts[part] for cost in everything) for part in PARTS}
    together = Cost(sum(cost.parent for cost in everything), sum(cost.child for cost in everything), parts)
    _print("all", cases * len(targets), together)
    if file:
        rates = [_rate(cases, cost) for cost in everything] + [_rate(cases * len(targets), together)]
        names = (*targets, "all")
        rows = [
            {"family": name, "cases for each CPU second": f"{rate:.0f}"}
            for name, rate in zip(names, rates, strict=True)
        ]
        file.write_text(json.dumps({"rows": rows}), encoding="utf-8")


def _rate(cases: int, cost: Cost) -> float:
    return cases / (cost.parent + cost.child)


def _print(name: str, cases: int, cost: Cost) -> None:
    shares = " ".join(f"{cost.parts[part] / cases * 1e3:8.2f}" for part in PARTS)
    both = f"{cost.parent / cases * 1e3:7.2f} {cost.child / cases * 1e3:7.2f}"
    print(f"{name:8} {both} {_rate(cases, cost):8.1f}  {shares}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=int, nargs="?", default=CASES)
    parser.add_argument("targets", nargs="*", default=tuple(FAMILIES))
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = parser.parse_args()
    main(given.cases // schedule.ON_CPU.cases * schedule.ON_CPU.cases, tuple(given.targets), given.json)
