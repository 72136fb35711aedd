"""The share of (row, key) pairs that are visible: a campaign would detect that the kernel left out the key.

Run it with ``make bench``, or with the number of cases of each family and the seed; ``--family`` limits it to some, and
``--json FILE`` also writes the row of each. The cases are those of ``fuzz-attn
run --workers 1 --seed SEED``, the bounds those of each family's rounding model. Campaigns do not measure this, because
leaving out each key costs more than the whole oracle. One case of thousands of keys and many heads may have most pairs
of a family. So the mean of the cases' own shares stands beside the share of all pairs, which is the figure that counts.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import get_args

import torch
from visible_keys import Visibility, visible_share  # type: ignore[import-not-found] # beside this script

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import Plain
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.targets.built_in import built_in

Row = tuple[str, str]


def measured(family: Family, count: int, seed: int) -> dict[Row, list[Visibility]]:
    """Return the counts of each of ``count`` cases of one family, for each row of the table."""
    target, found = built_in(family), dict[Row, list[Visibility]]()
    assert target is not None
    stream = CaseStream(target.domain, seed)
    for number in range(count):
        case = stream[number].case
        counts = visible_share(materialise(case), target.rounding_model)
        for row in (("family", family), *_rows(case)):
            found.setdefault(row, []).append(counts)
    return found


def _rows(case: AttentionCase) -> Iterator[Row]:
    yield "scores", _words(case.scores)
    yield "values", _words(case.values)
    uniform, marks = "near-uniform" if case.near_uniform else "not", "marks" if case.key_marks else "no marks"
    yield "near-uniform rows, key marks", f"{uniform}, {marks}"
    yield "alibi", _words(case.alibi)
    yield "sinks", _words(case.sinks)
    yield "q, cache, out", f"{case.dtypes.q}, {case.dtypes.kv}, {case.dtypes.out}"


def _words(recipe: Plain | None) -> str:
    return "none" if recipe is None else repr(recipe)


def main(count: int, seed: int, families: Sequence[Family], file: Path | None) -> None:
    """Print the share of visible pairs and of visible boundary pairs, by the recipes of the cases."""
    torch.set_num_threads(1)
    found: dict[Row, list[Visibility]] = {}
    for family in families:
        for row, cases in measured(family, count, seed).items():
            found.setdefault(row, []).extend(cases)
    whole = sum(_total(found["family", family]).boundary_pairs for family in families)
    print(f"{count} cases of each family, seed {seed}: visible (row, key) pairs, and those of keys on a boundary")
    print(f"{'':64} {'pairs':>9} {'boundary':>9} {'by case':>9} {'of all':>9}")
    last = ""
    for (what, words), cases in sorted(found.items()):
        if what != last:
            print(what)
        last, counts = what, _total(cases)
        pairs, share = counts.visible / max(1, counts.pairs), counts.boundary_pairs / max(1, whole)
        print(f"  {words:62} {pairs:9.1%} {_at_boundary(counts):9.1%} {_by_case(cases):9.1%} {share:9.1%}")
    if file:
        rows = [_row(family, found["family", family]) for family in families]
        file.write_text(json.dumps({"rows": rows}), encoding="utf-8")


def _row(family: Family, cases: list[Visibility]) -> dict[str, str]:
    shares = {"visible at a boundary": _at_boundary(_total(cases)), "mean of the cases": _by_case(cases)}
    return {"family": family} | {name: f"{100 * share:.1f} %" for name, share in shares.items()}


def _total(cases: list[Visibility]) -> Visibility:
    return sum(cases, Visibility())


def _at_boundary(counts: Visibility) -> float:
    return float(counts.boundary_visible / max(1, counts.boundary_pairs))


def _by_case(cases: list[Visibility]) -> float:
    return mean([_at_boundary(counts) for counts in cases if counts.boundary_pairs] or [0.0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=250)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--family", choices=get_args(Family), action="append", help="only this family; can be repeated")
    parser.add_argument("--json", type=Path, help="also write the row of each family to this file")
    given = parser.parse_args()
    main(given.count, given.seed, given.family or get_args(Family), given.json)
