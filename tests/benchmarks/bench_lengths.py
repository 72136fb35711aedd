"""What shows at which length: the faults that the oracle finds in cases of one sequence, beside two fixed tolerances.

Run it with ``make bench``, or with the number of cases, the seed, whose rounding model holds and the lengths, and for
some faults or types only with ``--faults`` and ``--types``. ``--json FILE`` also writes the rows. The model is
``declared`` (that of our kernels), ``default``, or that of a target, read from its kernels.

The cases are those that a campaign draws for sequences of this length: its strategy gets the sequence, and one to three
query tokens at its end. All else is drawn, recipes, features and compile keys. A case with more numbers than a
campaign's budget allows is drawn again.

The faults, each in every row and head of the output, which is exact apart from the fault and rounded to its type:

- V with a wrong scale, wrong by each power of two. The table has the smallest one that is found in 95 of 100 cases.
- One key lost, and one key counted twice. Of the keys that some row sees, it is the first, the last, the middle one,
  one at the edge of a page, or any, each as likely, also one of weight 0.
- A window shorter by one key, in cases with a window that hides a key. (One that is longer reads poison.)

A fault of keys is found by the oracle if the launch exceeds its bound, or else a launch of the property ``few_values``.

The rules of vLLM's and FlashAttention's tests are those of :mod:`fuzz_attn.mutation.batch_runner`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final

import torch
from faults import (  # type: ignore[import-not-found] # beside this script
    DOUBLED,
    LOST,
    Chosen,
    Parts,
    oldest_key,
    one_key,
    output_with,
    parts_of,
    visible_positions,
)

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.calibration.easy_cases import plain_case, sizes
from fuzz_attn.case.attention_case import AttentionCase, CompileKey
from fuzz_attn.case.attention_case import replace as replace_case
from fuzz_attn.case.parts import DTypes, Sequence
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.errors import CaseError
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.mutation.audit_results import RULES
from fuzz_attn.mutation.batch_runner import AllowedErrors, allowed_errors, stored
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.properties.few_values import few_values
from fuzz_attn.properties.launch_properties import oracle
from fuzz_attn.strategies.batches import MOST_CACHE_ELEMENTS
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.targets.arithmetic import ArithmeticReader
from fuzz_attn.targets.built_in import built_in
from fuzz_attn.targets.target import Target

LENGTHS: Final = (128, 2_000, 4_096, 32_768, 131_072)
TYPES: Final = {
    "float32": DTypes(),
    "float16": DTypes("float16", "float16", "float16"),
    "bfloat16": DTypes("bfloat16", "bfloat16", "bfloat16"),
    "e4m3 cache": DTypes("bfloat16", "float8_e4m3fn", "bfloat16"),
}
QUERIES: Final = (1, 1, 1, 2, 3)
ORACLE: Final = "oracle"
JUDGES: Final = (ORACLE, *RULES)
OF_KEYS: Final = ("lost key", "doubled key")
FAULTS: Final = (*OF_KEYS, "window", "scale")
PLACES: Final = ("first", "last", "middle", "page edge", "any")
SMALLEST: Final = 24
"""The smallest wrong scale is 1 + 2**-24."""
COLUMNS: Final = {"window": "window off by one", "scale": "wrong scale of V"}
"""The names of faults in the file of ``--json``, where they differ."""

Accepts = Callable[[torch.Tensor], bool]


@dataclass
class Row:
    """What each judge found in the cases of one type and length."""

    found: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    cases: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    scales: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """For each judge, the largest exponent ``n`` of each case for which a scale of ``1 + 2**-n`` is found."""

    def smallest_scale(self, name: str) -> str:
        """Return the smallest wrong scale that a judge finds in 95 of 100 cases."""
        exponents = sorted(self.scales[name], reverse=True)
        last = exponents[-(-95 * len(exponents) // 100) - 1]
        return "none" if last < 0 else f"1+2^-{last}"


class Planted(Experiment):
    """An experiment whose target is exact apart from a fault."""

    def __init__(self, case: AttentionCase, target: Target, chosen: Chosen, change: float) -> None:
        super().__init__(case, target, SimulatorBackend())
        self._fault = chosen, change

    def launch_tensors(self, tensors: AttentionTensors, dead: torch.Tensor | None = None) -> Launch:
        """Write the exact output with the fault."""
        before = {"out": storage_bytes(tensors.output).clone()}
        output = output_with(parts_of(tensors, self.target.rounding_model), *self._fault)
        tensors.output[: len(output)] = output.to(tensors.output.dtype)
        return Launch(tensors, before)

    @cached_property
    def changed_inputs(self) -> list[str]:
        """None."""
        return []

    def passes(self) -> bool:
        """Return whether the oracle and few values find nothing."""
        return oracle(self).passed and few_values(self).passed


def drawn(target: Target, dtypes: DTypes, num_keys: int, random: Random, windows: bool) -> Iterator[AttentionCase]:
    """Yield cases of one sequence, as a campaign of the target draws them."""
    pool = [key for key in key_pool(target.domain) if key.dtypes == dtypes and (key.has("window") or not windows)]
    while True:
        queries = QUERIES[int(random.random() * len(QUERIES))]
        yield _case(target, pool, Sequence(queries, num_keys - queries), random)


def _case(target: Target, pool: list[CompileKey], sequence: Sequence, random: Random) -> AttentionCase:
    while True:
        try:
            case = Sample(random).draw(cases(target.domain, keys=pool, sequences=(sequence,)))
        except CaseError:  # more elements than any case may have
            continue
        if sequence.seq_len * case.heads.num_kv_heads * case.heads.head_size <= MOST_CACHE_ELEMENTS:
            return case


def judges_of(tensors: AttentionTensors, reference: Reference) -> dict[str, Accepts]:
    """Return what accepts or rejects an output, by name."""
    rules = allowed_errors(tensors, reference)

    def written(output: torch.Tensor) -> AttentionTensors:
        whole = torch.zeros_like(tensors.output)
        whole[: len(output)] = output.to(whole.dtype)
        return tensors.with_outputs(out=whole)

    def passes(output: torch.Tensor) -> bool:
        return judge(written(output), reference).passed

    def accepted(rule: AllowedErrors) -> Accepts:
        return lambda output: rule.accepts(written(output))

    return {ORACLE: passes, **{name: accepted(rules[name]) for name in RULES}}


def try_faults(row: Row, case: AttentionCase, target: Target, random: Random, names: tuple[str, ...]) -> None:
    """Count which judges find which faults in a case."""
    tensors, model = materialise(case), target.rounding_model
    reference, parts = attend(tensors, model), parts_of(tensors, model)
    judges = judges_of(tensors, reference)
    for name in (each for each in names if each != "scale"):
        chosen, change = _fault(name, case, parts, random)
        output = output_with(parts, chosen, change)
        row.cases[name] += 1
        row.found[name, ORACLE] += not Planted(case, target, chosen, change).passes()
        for judge_name in RULES:
            row.found[name, judge_name] += not judges[judge_name](output)
    for judge_name, accepts in judges.items() if "scale" in names else ():
        row.scales[judge_name].append(_smallest_exponent(reference["out"].value, tensors, accepts))


def _fault(name: str, case: AttentionCase, parts: Parts, random: Random) -> tuple[Chosen, float]:
    if name == "window":
        return oldest_key(case.window), LOST
    position = _place(visible_positions(parts), case.pages.block_size, random)
    return one_key(position), LOST if name == "lost key" else DOUBLED


def _place(positions: torch.Tensor, block_size: int, random: Random) -> int:
    place = PLACES[int(random.random() * len(PLACES))]
    if place in PLACES[:3]:
        return int(positions[{"first": 0, "last": -1, "middle": len(positions) // 2}[place]])
    edges = positions[(positions % block_size == 0) | (positions % block_size == block_size - 1)]
    chosen = edges if place == "page edge" and len(edges) else positions
    return int(chosen[int(random.random() * len(chosen))])


def _smallest_exponent(expected: torch.Tensor, tensors: AttentionTensors, accepts: Accepts) -> int:
    """Return the largest ``n`` for which an output ``1 + 2**-n`` times too large is rejected; -1 if there is none."""
    for exponent in range(SMALLEST, -1, -1):
        if not accepts(stored(expected * (1 + 2.0**-exponent), tensors.output.dtype)):
            return exponent
    return -1


def measured(
    target: Target, dtypes: DTypes, num_keys: int, count: int, seed: int, names: tuple[str, ...] = FAULTS
) -> Row:
    """Return what is found in ``count`` cases of one type and length, and in as many with a window."""
    row, random = Row(), Random(f"{seed} {dtypes} {num_keys}")
    usual = tuple(name for name in names if name != "window")
    for number, case in enumerate(drawn(target, dtypes, num_keys, random, False)):
        if number == count or not usual:
            break
        try_faults(row, case, target, random, usual)
    for case in drawn(target, dtypes, num_keys, random, True):
        if row.cases["window"] == count or "window" not in names:
            break
        if 1 < case.window < num_keys:
            try_faults(row, case, target, random, ("window",))
    return row


def with_model(target: Target, whose: str, dtypes: DTypes) -> Target:
    """Return the target with the declared or default rounding model, or with that which is known of another target."""
    if whose == "declared":
        return target
    if whose == "default":
        return replace(target, rounding=None)
    judge = load(Setup(whose, None, "simulator"))
    judge.ready()
    case = replace_case(plain_case(judge.target.family, next(sizes(judge.target.domain))), dtypes=dtypes)
    judge.judge(Order(case))
    read = ArithmeticReader(judge.target).target_for(judge.backend.arithmetic(), dtypes)
    return replace(target, rounding=read.rounding_model)


def main(options: argparse.Namespace) -> None:
    """Print the table: one line for each type and length, and for each fault the judges' columns."""
    torch.set_num_threads(1)
    built = built_in("unified")
    assert built is not None
    count, faults = options.count, tuple(each for each in FAULTS if each in options.faults)
    print(f"rounding model: {options.model}")
    print(f"{count} cases of each type and length, and {count} with a window, seed {options.seed}: found, in percent")
    print("each cell: oracle / vLLM's tolerance / FlashAttention's rule; smallest scale of V found in 95 of 100 cases")
    print(f"{'type':10} {'keys':>7}  " + "  ".join(f"{name:>14}" for name in faults))
    rows = []
    for name in options.types:
        target = with_model(built, options.model, TYPES[name])
        for num_keys in options.lengths:
            row = measured(target, TYPES[name], num_keys, count, options.seed, faults)
            print(f"{name:10} {num_keys:7}  {'  '.join(_cell(row, fault) for fault in faults)}", flush=True)
            cells = {COLUMNS.get(fault, fault): ", ".join(_cells(row, fault)) for fault in faults}
            rows.append({"type": name, "keys": f"{num_keys:,}"} | cells)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}), encoding="utf-8")


def _cell(row: Row, fault: str) -> str:
    if fault == "scale":
        return " / ".join(_cells(row, fault))
    return "/".join(f"{each:>4}" for each in _cells(row, fault))


def _cells(row: Row, fault: str) -> list[str]:
    """Return the figure of each judge."""
    if fault == "scale":
        return [row.smallest_scale(each) for each in JUDGES]
    return [f"{100 * row.found[fault, each] / row.cases[fault]:.0f}" for each in JUDGES]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Print which faults are found at which length.")
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("model", nargs="?", default="declared")
    parser.add_argument("lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--types", nargs="+", choices=tuple(TYPES), default=tuple(TYPES))
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main(_options())
