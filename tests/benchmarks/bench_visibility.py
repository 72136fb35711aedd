"""The share of (row, key) pairs that are visible: a campaign would detect that the kernel left out the key.

Run it with ``make bench``, or with the number of cases of each family and the seed; ``--json FILE`` also writes the row
of each family. The cases are those of ``fuzz-attn
run --workers 1 --seed SEED``, the bounds those of each family's rounding model. Campaigns do not measure this, because
leaving out each key costs more than the whole oracle.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
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


def measured(family: Family, count: int, seed: int) -> dict[Row, Visibility]:
    """Return the counts of ``count`` cases of one family, for each row of the table."""
    target, found = built_in(family), dict[Row, Visibility]()
    assert target is not None
    stream = CaseStream(target.domain, seed)
    for number in range(count):
        case = stream[number].case
        counts = visible_share(materialise(case), target.rounding_model)
        for row in (("family", family), *_rows(case)):
            found[row] = found.get(row, Visibility()) + counts
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


def main(count: int, seed: int, file: Path | None) -> None:
    """Print the share of visible pairs and of visible boundary pairs, by the recipes of the cases."""
    torch.set_num_threads(1)
    found: dict[Row, Visibility] = {}
    for family in get_args(Family):
        for row, counts in measured(family, count, seed).items():
            found[row] = found.get(row, Visibility()) + counts
    boundary = sum(counts.boundary_pairs for (what, _), counts in found.items() if what == "family")
    print(f"{count} cases of each family, seed {seed}: visible (row, key) pairs, and those of keys on a boundary")
    print(f"{'':64} {'pairs':>9} {'boundary':>9} {'of all':>9}")
    last = ""
    for (what, words), counts in sorted(found.items()):
        if what != last:
            print(what)
        last = what
        pairs, edges = counts.visible / max(1, counts.pairs), counts.boundary_visible / max(1, counts.boundary_pairs)
        print(f"  {words:62} {pairs:9.1%} {edges:9.1%} {counts.boundary_pairs / boundary:9.1%}")
    if file:
        shares = {family: found["family", family] for family in get_args(Family)}
        rows = [{"family": family, "visible at a boundary": _percent(each)} for family, each in shares.items()]
        file.write_text(json.dumps({"rows": rows}), encoding="utf-8")


def _percent(counts: Visibility) -> str:
    return f"{100 * counts.boundary_visible / max(1, counts.boundary_pairs):.1f} %"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=250)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--json", type=Path, help="also write the row of each family to this file")
    given = parser.parse_args()
    main(given.count, given.seed, given.json)
