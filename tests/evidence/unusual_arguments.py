"""Which arguments a launcher accepts and reads wrongly: tries each form of each argument on drawn cases.

``python tests/evidence/unusual_arguments.py SPEC`` prints them in one line, such as ``strides of elements: `seq_lens`,
`block_table```. A run draws such trials now and then; this draws nothing else, and follows nothing. A case that fails,
or is refused, with usual arguments is not tried. Addresses and devices are not tried, which took hours to show nothing.
``make launchers ARGS="--contracts TEXT"`` writes the lines into the matrix.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.schedule import play_round, size_on_cpu
from fuzz_attn.operations.contract_draws import ContractDraws
from fuzz_attn.operations.registry import operation_of

SEED: Final = 31
ROUNDS: Final = 5
CASES: Final = 60
TRIES: Final = 15
"""Cases on which a trial is tried that does not fail."""
WAYS: Final = {"elements": "strides of elements", "axes": "strides of axes"}


class _Enough(Exception):  # noqa: N818 - it ends the drawing, and nothing is wrong
    """All trials were tried, or the time is up."""


def failing(spec: str, seconds: float) -> tuple[list[ContractTrial], Mapping[str, str]]:
    """Return the trials that fail of a launcher, and the parameters of its roles."""
    end = time.monotonic() + seconds
    with IsolatedWorker(Setup(spec, backend="simulator")) as worker:
        domain, binding = worker.ready.domain, worker.ready.binding
        operation, tried = operation_of(domain), Counter[ContractTrial]()
        draws = ContractDraws(operation, domain, binding, Random(1), on_gpu=False)
        pending = [trial for trial in draws.first if trial.form != "empty"]
        found: list[ContractTrial] = []

        def attempt(case: Any, _: str | None) -> None:
            usual = None if operation.is_mostly_virtual(case) else worker.judge(Order(case))
            if usual is None or not usual.verdict.passed or usual.others or usual.refusal is not None:
                return
            for trial in tuple(pending):
                if time.monotonic() > end:
                    raise _Enough
                unusual = draws.tried(case, trial)
                if unusual is None:
                    continue
                tried[trial] += 1
                failed = not worker.judge(Order(unusual)).verdict.passed
                found.extend([trial] * failed)
                if failed or tried[trial] == TRIES:
                    pending.remove(trial)
            if not pending:
                raise _Enough

        try:
            for number in range(ROUNDS):
                play_round(domain, SEED + number, CASES, attempt, size_on_cpu(0))
        except _Enough:
            pass
    return found, binding.parameter_of


def in_words(trials: list[ContractTrial], parameters: Mapping[str, str]) -> str:
    """Return trials in one line, those of one way together."""
    return "; ".join(_lines(trials, parameters))


def _lines(trials: list[ContractTrial], parameters: Mapping[str, str]) -> Iterator[str]:
    of_way: dict[str, list[str]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.form, trial.role)):
        way = WAYS.get(trial.way, "output in place" if trial.form == "in_place" else trial.form)
        roles = trial.roles if trial.form != "in_place" else (trial.role,)
        of_way.setdefault(way, []).extend(f"`{parameters[role]}`" for role in roles if role in parameters)
    for way, names in sorted(of_way.items(), key=lambda pair: pair[0], reverse=True):
        yield f"{way}: {', '.join(dict.fromkeys(names))}"


def main() -> None:
    """Print what is taken wrongly of the launcher that the command line names."""
    parser = argparse.ArgumentParser(description="Say which arguments a launcher accepts and reads wrongly.")
    parser.add_argument("spec")
    parser.add_argument("--seconds", type=float, default=50.0)
    options = parser.parse_args()
    print(in_words(*failing(options.spec, options.seconds)))


if __name__ == "__main__":
    main()
