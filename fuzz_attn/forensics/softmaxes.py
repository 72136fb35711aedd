"""Softmaxes: weights whose scores are right but whose sums are not: tiles, segments, denominators, lost maxima."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from fuzz_attn.forensics.addresses import fill_queries
from fuzz_attn.forensics.attended_keys import SMALLEST_TILE, Recovered, kind_of_cell, reason_of, recovered
from fuzz_attn.forensics.explanation import OR, Finding, Reason, Row, factor, keys, rows_of_case
from fuzz_attn.forensics.lab import FAR, Array, Lab, by_row, without_scores
from fuzz_attn.forensics.log_sums import UNSHIFTED
from fuzz_attn.forensics.score_terms import READABLE, Comparison, Terms, first_row
from fuzz_attn.inputs.batch_rows import sees
from fuzz_attn.inputs.storage import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.logits import score_scale

CONTROL: Final = -1.0
"""A score that every softmax can take: weights that are wrong there come from wrong scores."""
LEVELS: Final = (-20.0, -150.0, -20000.0)
"""Scores at which a softmax fails that is not shifted by the largest one, or that masks with a finite number."""
STEPS: Final = 12
"""Steps of scores that rise by 1 for each tile."""
SINK_LEVELS: Final = (-2.0, 2.0)
"""Scores at which a sink of 0 is seen."""
SINK_ERROR: Final = 0.3
"""How far the shift of a sink may be from that of the scores, as in outputs of few bits."""
MOST_SIZES: Final = 48
_NOT_RESCALED: Final = (
    "the denominator is not rescaled where a later tile raises the maximum: earlier keys, or the sink, count too much "
    "in the denominator only"
)
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
        tensors = _at_one_level(lab, level)
        if tensors is None:
            return
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
    yield from _step_findings(lab)


def _step_findings(lab: Lab) -> Iterator[Finding]:
    """Yield that parts of the keys of a latent cache are merged with wrong weights, where scores rise tile by tile.

    The scores of the case itself tell it of other caches.
    """
    tensors, cells = _at_one_level(lab, LEVELS[0]), lab.cells
    if tensors is None or not tensors.cache_format.is_latent:
        return
    places = zip(cells.block.tolist(), cells.slot.tolist(), strict=True)
    position = np.array([owners[0].position if (owners := cells.owners.get(place)) else 0 for place in places])
    lab.set_all_keys(tensors, 16.0 * (1.0 + np.minimum(position // SMALLEST_TILE, STEPS) / LEVELS[0]))
    found = recovered(lab, tensors)
    rows = [] if found is None else [row for row in rows_of_case(lab.case) if found.far[row.token, row.head].any()]
    if found is not None and rows and _in_parts(rows[0], found):
        words = f"{rows[0].words}, head {rows[0].head}: {_worst_weight(rows[0], found)}"
        why = "where scores rise from tile to tile, and is right with equal ones: parts are not rescaled to one maximum"
        yield Finding("segment", f"{words} {why}")


def _at_one_level(lab: Lab, level: float) -> AttentionTensors | None:
    """Return tensors whose scores are all at a level; None where nothing gives that."""
    tensors, heads = without_scores(lab.cleared()), lab.case.heads
    # The values of a latent cache are parts of its keys, and those that show the weights must not change a score.
    own = heads.head_size_v if tensors.cache_format.is_latent else 0
    gain = score_scale(tensors) * (heads.head_size - own)
    if not gain or lab.case.softcap:
        return None
    fill_queries(lab, tensors, np.full(lab.case.num_tokens * heads.num_query_heads, level / gain / 16))
    bits_of(tensors.query)[..., :own] = 0
    lab.set_all_keys(tensors, np.full(len(lab.cells), 16.0))
    return tensors


def sink_findings(lab: Lab) -> Iterator[Finding]:
    """Yield that the weight of the sink does not fall as all scores rise, as where it is not shifted by the maximum."""
    if lab.case.sinks is None:
        return
    shifts = []
    for level in SINK_LEVELS:
        tensors = _at_one_level(lab, level)
        if tensors is None or tensors.sinks is None:
            return
        tensors.sinks.fill_(0.0)
        lab.set_all_values(tensors, np.ones(lab.case.heads.head_size_v))
        probed = lab.run(tensors)
        with np.errstate(divide="ignore", invalid="ignore"):
            actual, expected = (np.log(1 / sums[..., 0] - 1) for sums in (probed.actual, probed.expected))
        shifts.append(actual - expected)
    rows = [row for row in rows_of_case(lab.case) if row.end > 0 and np.isfinite(shifts[0][row.token, row.head])]
    moved = np.array([(shifts[1] - shifts[0])[row.token, row.head] for row in rows])
    if len(moved) and (np.abs(moved - (SINK_LEVELS[1] - SINK_LEVELS[0])) < SINK_ERROR).all():
        words = "the sink is not shifted by the maximum: its weight is exp(maximum) times what it should be"
        yield Finding("sink", f"{rows[0].words}, head {rows[0].head}: {words}", cause=UNSHIFTED)


def rescale_findings(seen: Comparison) -> Iterator[Finding]:
    """Yield that only the denominator has sums of parts which are relative to other maxima than that of the row."""
    if not seen.usable.any():
        return
    found: dict[Reason, str] = {}
    for size in _sizes(seen):
        part = _parts_of(seen.terms, size)
        for reason, words, weights in _unscaled(seen.terms, part, size):
            if reason not in found and seen.explains(weights):
                found[reason] = words
    if found:
        visible = int((seen.terms.visible & seen.usable[..., None]).sum(axis=-1).max())
        reason = next(iter(found))
        words = f"{first_row(seen)}: {OR.join(found.values())}"
        yield Finding(reason, words, vague=len(found) > 1 or visible < EVEN)


def _sizes(seen: Comparison) -> list[int]:
    """Return sizes of tiles and parts, usual ones first."""
    longest = seen.terms.visible.shape[-1]
    some = [seen.case.launch.tile_size or SMALLEST_TILE, 16, 32, 64, 128, *range(SMALLEST_TILE, longest, SMALLEST_TILE)]
    return list(dict.fromkeys(some))[:MOST_SIZES]


def _parts_of(terms: Terms, size: int) -> Array:
    """Return the number of the part of each key, of the shape of the scores; packed keys begin a new one."""
    position = np.broadcast_to(np.arange(terms.visible.shape[-1]), terms.visible.shape)
    before = -(-terms.context.astype(np.int64) // size)
    parts: Array = np.where(terms.packed, before + terms.distance.astype(np.int64) // size, position // size)
    return parts


def _unscaled(terms: Terms, part: Array, size: int) -> Iterator[tuple[Reason, str, Array]]:
    """Yield the weights where the denominator is not rescaled as the outputs are: a reason, words, and the weights."""
    logits = terms.logits()
    sinks = np.broadcast_to(terms.sinks[:, None], (*logits.shape[:2], 1))
    running, earlier = sinks, np.where(np.isfinite(sinks), 1.0, 0.0)
    top = np.maximum(logits.max(axis=-1, keepdims=True, initial=-np.inf), sinks)
    top = np.where(np.isfinite(top), top, 0.0)
    parts_sum = np.exp(sinks - top)
    for number in range(int(part.max(initial=0)) + 1):
        own = np.where(part == number, logits, -np.inf)
        largest = own.max(axis=-1, keepdims=True, initial=-np.inf)
        running = np.maximum(running, largest)
        for_tile, for_part = (np.where(np.isfinite(each), each, 0.0) for each in (running, largest))
        earlier = earlier + np.exp(own - for_tile).sum(axis=-1, keepdims=True)
        parts_sum = parts_sum + np.exp(own - for_part).sum(axis=-1, keepdims=True)
    exponentials = np.exp(logits - top)
    yield (
        "tile",
        _NOT_RESCALED,
        exponentials / np.where(earlier > 0, earlier, 1.0),
    )
    yield (
        "segment",
        f"the denominator adds sums of parts (as of {size} keys), each relative to its own maximum and not rescaled",
        exponentials / np.where(parts_sum > 0, parts_sum, 1.0),
    )


def nan_findings(lab: Lab, found: Recovered) -> Iterator[Finding]:
    """Yield that a row has no weights with equal scores and no poison, as where it sees nothing of a tile."""
    lost = by_row(found.far) & ~by_row(np.isfinite(found.actual))
    row = next((row for row in rows_of_case(lab.case) if lost[row.token, row.head]), None)
    if row is None:
        return
    first, seq_len = lab.case.visibility.first(row.position), lab.case.sequences[row.sequence].seq_len
    base = f"{row.words}, head {row.head}: all weights are NaN with equal scores, and no poison is read"
    parts = lab.case.launch.path == "3d"
    hidden = (some for some in (range(first), range(row.end, seq_len)) if some)
    apart = next((some for some in hidden if parts or len(some) >= SMALLEST_TILE), None)
    if apart is None:
        yield Finding("denominator", base, vague=True)
        return
    words = f"{base}: a tile or segment with none of the keys that it sees gives NaN (hidden: {keys(apart)})"
    yield Finding("tile", words)


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
    if _in_parts(row, found):
        return Finding("denominator", f"{words}: parts are not rescaled to one maximum")
    return Finding("denominator", words, vague=True)


def _in_parts(row: Row, found: Recovered) -> bool:
    """Return whether keys of a row weigh too much or too little together, in parts that begin where a tile does."""
    own = found.cells.keys_of(row.sequence, row.kv_head)[: row.end]
    actual, expected = (weights[row.token, row.head, own] for weights in (found.actual, found.expected))
    used = np.flatnonzero((own >= 0) & (expected > 0))
    ratio = actual[used] / expected[used]
    edges = used[1:][np.abs(np.diff(ratio)) > FAR * np.abs(ratio).max(initial=1e-30)]
    return bool(len(edges)) and all(int(edge) % SMALLEST_TILE == 0 for edge in edges)


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
        return Finding("denominator", f"{base}: scores so low are lost")
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
        if spread < 0.2 * abs(usual - 1) and _is_of_all(seen, place, usual):
            yield _sum(row, usual, seen)
            return
        edge = _edge(ratio, used, seen, row) if used.sum() >= EVEN else None
        if edge is not None:
            jump = _jump(row, ratio, used, edge, seen)
            yield jump
            if not jump.vague:
                return


def _is_of_all(seen: Comparison, place: tuple[int, int], ratio: float) -> bool:
    """Return whether the sum of a row's weights has the ratio of those used too: else others weigh what these lack."""
    actual, expected = float(seen.actual[place].sum()), float(seen.expected[place].sum())
    return abs(actual - ratio * expected) < 0.2 * abs(ratio - 1) * expected


def _ratios(seen: Comparison, place: tuple[int, int]) -> tuple[Array, Array]:
    """Return actual to expected weights, and which of them can be used."""
    actual, expected = seen.actual[place], seen.expected[place]
    used = (expected > READABLE * max(float(expected.max()), 1e-30)) & (actual > 0)
    return actual / np.where(expected > 0, expected, 1.0), used


def _sum(row: Row, ratio: float, seen: Comparison) -> Finding:
    actual, expected = (float(weights[row.token, row.head].sum()) for weights in (seen.actual, seen.expected))
    sums = f"{row.words}, head {row.head}: its weights sum to {actual:.6g}, should be {expected:.6g}"
    scales = {"k_scale": seen.case.scales.k, "q_scale": seen.case.scales.q, "out_scale": seen.case.scales.out}
    for name, scale in scales.items():  # those of v and of the output are 1 in this launch
        if scale not in (0.0, 1.0) and abs(ratio - scale) < 0.01 * abs(scale):
            return Finding("scale", f"{sums}: values are multiplied by {name}, {factor(scale)}")
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
    return Finding("tile", f"{what}: an earlier tile or segment is not rescaled rightly", vague)
