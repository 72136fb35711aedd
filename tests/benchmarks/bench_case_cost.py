"""The cost of one case without its launch: drawing, tensors, oracle, judge, over the default distribution.

Run it with ``make bench``. Compare the shares; the times depend on the machine.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.strategies.cases import cases

PARTS = ("draw", "tensors", "oracle", "judge")


def measured(count: int) -> dict[str, list[float]]:
    """Return the milliseconds of each part for each of ``count`` drawn cases."""
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    domain = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
    drawn = time.perf_counter()

    def timed(part: str, work: Callable[..., Any], *arguments: object) -> Any:
        start = time.perf_counter()
        result = work(*arguments)
        times[part].append((time.perf_counter() - start) * 1e3)
        return result

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(domain))
    def run(case: AttentionCase) -> None:
        nonlocal drawn
        times["draw"].append((time.perf_counter() - drawn) * 1e3)
        tensors = timed("tensors", materialise, case)
        reference = timed("oracle", attend, tensors, RoundingModel())
        rows = reference.expected.shape[0]
        tensors.output[:rows] = reference.expected.to(tensors.output.dtype)
        timed("judge", judge, tensors, reference)
        drawn = time.perf_counter()

    run()
    return times


def main(count: int) -> None:
    """Print median, mean and 95th percentile of each part and of their sum."""
    torch.set_num_threads(1)
    measured(20)
    times = measured(count)
    times["all"] = [sum(parts) for parts in zip(*(times[part] for part in PARTS), strict=True)]
    print(f"{count} cases of the default distribution, milliseconds per case, one thread")
    print(f"{'part':8} {'median':>8} {'mean':>8} {'95%':>8}")
    for part, values in times.items():
        tail = sorted(values)[int(0.95 * len(values))]
        print(f"{part:8} {statistics.median(values):8.2f} {statistics.mean(values):8.2f} {tail:8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
