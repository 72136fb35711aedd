"""Failures of targets that round in an unusual way, with their rounding model and without it, over campaign cases.

Run it with ``python tests/benchmarks/bench_rounding_models.py [CASES] [NAME ...]``. The targets are those of
``tests/sample_targets/narrow_attention.py``. A declared target must not fail. An undeclared one fails if its arithmetic
is coarser than the default model allows, on the first 100 cases. ``wider`` is the median ratio of the two bounds.
Relations between two launches are left out.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.binding.binding import Binding
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

FILE = Path(__file__).parents[1] / "sample_targets" / "narrow_attention.py"
BACKEND, PLAIN = InterpreterBackend(), RoundingModel()


def narrow_target(name: str, rounding: dict[str, Any]) -> Target:
    """Return a target of the sample file with some fields of a rounding model."""
    return load_target(f"{FILE}:{name}", binding=Binding(rounding=rounding))


def experiments(name: str, rounding: dict[str, Any], cases: int) -> Iterator[Experiment]:
    """Yield an experiment on each case of a campaign."""
    target = narrow_target(name, rounding)
    stream = CaseStream(target.domain, seed=12)
    for number in range(cases):
        yield Experiment(stream[number].case, target, BACKEND)


def failures(name: str, rounding: dict[str, Any], cases: int) -> tuple[int, float]:
    """Return how many cases fail and the largest ratio of the oracle."""
    failed, largest = 0, 0.0
    for experiment in experiments(name, rounding, cases):
        verdict = check(experiment)
        failed += not verdict.passed
        largest = max(largest, verdict.ratio or 0.0)
    return failed, largest


def wider(name: str, rounding: dict[str, Any], cases: int) -> float:
    """Return the median ratio of the bound with the fields to that without them."""
    ratios = []
    for experiment in experiments(name, rounding, cases):
        tensors = experiment.fresh()
        declared, default = (attend(tensors, model)["out"].bound for model in (experiment.target.rounding_model, PLAIN))
        finite = declared.isfinite() & default.isfinite()
        ratios += (declared / default)[finite].flatten().tolist()
    return float(torch.tensor(ratios).median())


def main(cases: int, names: list[str]) -> None:
    """Print one line for each arithmetic."""
    torch.set_num_threads(1)
    BACKEND.prepare()
    BACKEND.preflight()
    narrow_target("float32_attention", {})
    roundings = sys.modules[f"fuzz_attn_target_{FILE.stem}"].ROUNDINGS
    print(f"{'target':24} {'declared':>9} {'worst':>9} {'undeclared':>11} {'worst':>9} {'wider':>7}  rounding")
    for name, rounding in roundings.items():
        if not names or name in names:
            own, plain = failures(name, rounding, cases), failures(name, {}, min(cases, 100))
            print(
                f"{name:24} {own[0]:9} {own[1]:9.3g} {plain[0]:11} {plain[1]:9.3g} "
                f"{wider(name, rounding, min(cases, 50)):7.3g}  {rounding}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2:])
