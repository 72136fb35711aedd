"""Softmaxes: weights whose scores are right but whose sums are not: tiles, segments, denominators, lost maxima."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from fuzz_attn.forensics.addresses import fill_queries
from fuzz_attn.forensics.attended_keys import Recovered, kind_of_cell, reason_of, recovered
from fuzz_attn.forensics.explanation import Finding, Row, factor, keys, rows_of_case
from fuzz_attn.forensics.lab import FAR, Array, Lab, by_row, without_scores
from fuzz_attn.forensics.score_terms import READABLE, Comparison
from fuzz_attn.inputs.batch_rows import sees
from fuzz_attn.oracle.logits import score_scale

CONTROL: Final = -1.0
"""A score that every softmax can take: weights that are wrong there come from wrong scores."""
LEVELS: Final = (-20.0, -150.0, -20000.0)
"""Scores at which a softmax fails that is not shifted by the largest one, or that masks with a finite number."""
EVEN: Final = 4
"""Weights that must agree before they count as one part."""
LOW: Final = -50.0
"""A row whose largest logit is below this has no weight left where the softmax is not shifted by its maximum."""


def attended_findings(lab: Lab, found: Recovered, seen: Comparison) -> Iterator[Finding]:
    """Yield a key that a row attends with its own scores only, though not with equal scores: a finite mask value."""
    logits = seen.terms.logits()
    for row in rows_of_case(lab.case):
        top = float(logits[row.token, row.head].max())
        finding = _attended(lab, found, row, f"its own scores (largest {top:.4g})")
        if finding is not None:
            yield finding
            return


def _attended(lab: Lab, found: Recovered, row: Row, scores: str) -> Finding | None:
    """Return the finding of a cell that a row must not attend, and that has a weight."""
    place = (row.token, row.head)
    actual, expected = np.nan_to_num(found.actual[place]), found.expected[place]
    own = found.cells.keys_of(row.sequence, row.kv_head)[: row.end]
    hidden = (expected == 0) & (actual > found.bound[place]) & (actual > 1e-3)
    seen = own[(own >= 0) & (expected[own] > 0)]
    hidden[seen] = False
    cells = [
        cell
        for cell in np.flatnonzero(hidden).tolist()
        if not (lab.case.qq_bias is None and _visible(lab, row, found, cell))
    ]
    if not cells:
        return None
    kind, position = kind_of_cell(found.cells, lab.case, row, cells[0]), _position(found, row, cells[0])
    return Finding(
        reason_of(kind),
        f"{row.words}, head {row.head}, attends key {position}, which it must not see, with {scores} and not with "
        "equal ones near 0: the score of masked keys is finite",
    )


def _visible(lab: Lab, row: Row, found: Recovered, cell: int) -> bool:
    """Return whether a row sees the key of a cell, whose weight may be 0 by its score."""
    own = int(found.cells.head[cell]) == row.kv_head
    return own and sees(lab.case, row.sequence, row.query, _position(found, row, cell))


def level_findings(lab: Lab) -> Iterator[Finding]:
    """Yield what goes wrong where all scores are equal and far from 0."""
    for level in (CONTROL, *LEVELS):
        tensors = without_scores(lab.cleared())
        gain = score_scale(tensors) * lab.case.heads.head_size
        if not gain or lab.case.softcap:
            return
        fill_queries(lab, tensors, np.full(lab.case.num_tokens * lab.case.heads.num_query_heads, level / gain / 16))
        lab.set_all_keys(tensors, np.full(len(lab.cells), 16.0))
        found = recovered(lab, tensors)
        if found is None or not found.far.any():
            continue
        for row in rows_of_case(lab.case):
            finding = _attended(lab, found, row, f"all scores at {level:g}")
            if finding is not None:
                yield finding
                return
        row = next(row for row in rows_of_case(lab.case) if found.far[row.token, row.head].any())
        yield _at_level(row, found, level) if level != CONTROL else _misread(row, found)
        return


def _misread(row: Row, found: Recovered) -> Finding:
    """Return that a row has wrong scores though all numbers of q and K are equal."""
    words = f"{row.words}, head {row.head}: {_worst_weight(row, found)} with equal numbers in all of q and K"
    return Finding("address", f"{words}: q or K is read at wrong addresses", vague=True)


def _worst_weight(row: Row, found: Recovered) -> str:
    """Return the most wrong weight of a row in words."""
    actual, expected = np.nan_to_num(found.actual[row.token, row.head]), found.expected[row.token, row.head]
    worst = int(np.argmax(np.abs(actual - expected)))
    return f"key {_position(found, row, worst)} weighs {actual[worst]:.4g}, should weigh {expected[worst]:.4g},"


def _at_level(row: Row, found: Recovered, level: float) -> Finding:
    """Return the sum of a row's weights where all scores are at one level, or a weight where the sum is right."""
    total = float(np.nan_to_num(found.actual[row.token, row.head]).sum())
    scores = f"with all scores at {level:g}"
    if abs(total - 1) > FAR:
        what = f"the weights of {row.words}, head {row.head}, sum to {total:.4g} {scores}"
        why = "a finite mask value or start of the maximum"
        return Finding("denominator", f"{what}, and to 1 with scores near 0: {why}")
    words = f"{row.words}, head {row.head}: {_worst_weight(row, found)} {scores}, and is right with scores near 0"
    return Finding("denominator", f"{words}: parts are not rescaled to one maximum")


def _position(found: Recovered, row: Row, cell: int) -> int:
    place = (int(found.cells.block[cell]), int(found.cells.slot[cell]))
    owners = found.cells.owners.get(place, [])
    return next((owner.position for owner in owners if owner.sequence == row.sequence), -1)


def lost_findings(lab: Lab, seen: Comparison, found: Recovered) -> Iterator[Finding]:
    """Yield a row whose weights are all 0 or NaN with its own scores."""
    logits, wrong = seen.terms.logits(), by_row(found.far)
    for row in rows_of_case(lab.case):
        place = (row.token, row.head)
        actual = found.actual[place]
        finite = bool(np.isfinite(actual).all())
        if wrong[place] and not (finite and actual.sum() > 1e-3 * found.expected[place].sum()):
            visible = np.flatnonzero(seen.terms.visible[place])
            first = int(visible[0]) if len(visible) else 0
            yield _lost(row, "0" if finite else "NaN", float(logits[place].max()), first)
            return


def _lost(row: Row, what: str, top: float, first: int) -> Finding:
    """Return why all weights of a row may be lost, by its largest logit and the first key that it sees."""
    base = f"{row.words}, head {row.head}: all weights are {what} with its own scores (largest logit {top:.4g})"
    if top >= LOW:
        return Finding("denominator", f"{base}, and right with equal ones")
    if not first:
        return Finding("denominator", f"{base}: the running maximum does not follow scores so low")
    hidden = f"keys 0 to {first - 1} are hidden"
    words = f"{base}: the maximum is not that of the keys that it sees, after a tile with none ({hidden})"
    return Finding("tile", words)


def part_findings(lab: Lab, seen: Comparison) -> Iterator[Finding]:
    """Yield keys that weigh too much or too little together, or a sum of all weights that is wrong."""
    found = list(_parts_of_rows(lab, seen))
    yield from sorted(found, key=lambda finding: finding.vague)[:1]


def _parts_of_rows(lab: Lab, seen: Comparison) -> Iterator[Finding]:
    """Yield the finding of each row until one is not vague."""
    for row in rows_of_case(lab.case):
        place = (row.token, row.head)
        ratio, used = _ratios(seen, place)
        if not seen.usable[place] or not used.any():
            continue
        spread, usual = float(ratio[used].max() / ratio[used].min()) - 1, float(np.median(ratio[used]))
        if spread < 0.2 * abs(usual - 1):
            yield _sum(row, usual, seen)
            return
        edge = _edge(ratio, used, seen, row) if used.sum() >= EVEN else None
        if edge is not None:
            jump = _jump(row, ratio, used, edge, seen)
            yield jump
            if not jump.vague:
                return


def _ratios(seen: Comparison, place: tuple[int, int]) -> tuple[Array, Array]:
    """Return actual to expected weights, and which of them can be used."""
    actual, expected = seen.actual[place], seen.expected[place]
    used = (expected > READABLE * max(float(expected.max()), 1e-30)) & (actual > 0)
    return actual / np.where(expected > 0, expected, 1.0), used


def _sum(row: Row, ratio: float, seen: Comparison) -> Finding:
    actual, expected = (float(weights[row.token, row.head].sum()) for weights in (seen.actual, seen.expected))
    sums = f"{row.words}, head {row.head}: its weights sum to {actual:.6g}, should be {expected:.6g}"
    return Finding("denominator", f"{sums}: the denominator is {factor(1 / ratio)} times what it should be")


def _edge(ratio: Array, used: Array, seen: Comparison, row: Row) -> int | None:
    """Return the key at which the ratios of the weights jump, if they are even before and after it."""
    positions, packed = np.flatnonzero(used), seen.terms.packed[row.token, row.head]
    jumps = np.abs(np.diff(np.log(ratio[positions])))
    at = int(np.argmax(jumps))
    before, edge = int(positions[at]), int(positions[at + 1])
    rest = np.delete(jumps, at)
    even = not len(rest) or float(np.median(rest)) < 0.05 * jumps[at]
    if packed[before] != packed[edge]:  # two parts only: the second must be even too, else its keys are misread
        even = even and float(jumps[at + 1 :].max(initial=0.0)) < 0.1 * jumps[at]
    tiles = {seen.case.launch.tile_size or 16, 16, seen.case.pages.block_size}
    at_part = packed[before] != packed[edge] or any(before // tile != edge // tile for tile in tiles)
    return edge if even and at_part else None


def _jump(row: Row, ratio: Array, used: Array, edge: int, seen: Comparison) -> Finding:
    """Return that the keys before an edge weigh too much or too little beside those behind it."""
    positions, packed = np.flatnonzero(used), seen.terms.packed[row.token, row.head]
    before, after = positions[positions < edge], positions[positions >= edge]
    times = float(np.median(ratio[before]) / np.median(ratio[after]))
    early, late = (keys(range(int(part[0]), int(part[-1]) + 1)) for part in (before, after))
    what = f"{row.words}, head {row.head}: {early} weigh {factor(times)} times as much as they should beside {late}"
    vague = min(len(before), len(after)) == 1  # the score of that key may be wrong
    if seen.case.launch.path == "3d" or packed[edge] != packed[edge - 1]:
        return Finding("segment", f"{what}: two parts are merged with wrong weights", vague)
    return Finding("tile", f"{what}: an earlier tile or segment is not rescaled", vague)
