"""Attended keys: the weights that the kernel really used, against the keys that each row sees.

The weights are recovered from its outputs for unit vectors as values. With all scores equal, they show the mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import is_fp8
from fuzz_attn.case.recipes import Chunks, Custom, Full, Lookahead
from fuzz_attn.forensics.explanation import (
    OR,
    Finding,
    Heatmap,
    Reason,
    Row,
    count,
    cut_words,
    factor,
    is_plausible,
    keys,
    ranges,
    rows_of_case,
)
from fuzz_attn.forensics.lab import FAR, PACKED, Array, Cells, Lab, beyond, by_row, without_scores
from fuzz_attn.inputs.batch_rows import sees
from fuzz_attn.inputs.tensors import AttentionTensors

NARROW: Final = 128.0
"""The unit of an fp8 output, which has few numbers below 1."""
MOST_LAUNCHES: Final = 96
ROWS: Final = 24
KEYS: Final = 48
"""The largest heatmap."""


@dataclass(frozen=True)
class Recovered:
    """The weight of each cell in each row, float64 ``[num_tokens, num_query_heads, num_cells]``.

    ``expected`` are the oracle's, ``bound`` the largest error of a correct kernel.
    """

    cells: Cells
    actual: Array
    expected: Array
    bound: Array

    @cached_property
    def wrong(self) -> Array:
        """Bool: whether a weight is not as it should be."""
        return beyond(self.actual, self.expected, self.bound) & np.isfinite(self.bound)

    @cached_property
    def far(self) -> Array:
        """Bool: whether a weight is wrong by more than a rounding could make it."""
        largest = self.expected.max(axis=-1, keepdims=True, initial=0.0)
        return self.wrong & beyond(self.actual, self.expected, FAR * largest)


def recovered(lab: Lab, tensors: AttentionTensors, cells: Array | None = None) -> Recovered | None:
    """Return the weights for tensors of a case, which this changes; None where that takes too many launches.

    With ``cells`` only those are probed; the weights of all others are 0. A large case is probed around its first wrong
    row only.
    """
    width = lab.case.heads.head_size_v
    everything = len(lab.cells) <= MOST_LAUNCHES * width
    probed = cells if cells is not None else np.arange(len(lab.cells)) if everything else lab.focus
    if len(probed) > MOST_LAUNCHES * width:
        return None
    unit = NARROW if is_fp8(lab.case.dtypes.out) else 1.0
    arrays: list[Array] = []
    for first in range(0, len(probed), width):
        some = probed[first : first + width]
        lab.set_values(tensors, some, np.arange(len(some)), unit)
        output = lab.run(tensors)
        parts = output.actual, output.expected, output.bound
        arrays = arrays or [np.zeros((*part.shape[:2], len(lab.cells))) for part in parts]
        for array, part in zip(arrays, parts, strict=True):
            array[..., some] = part[..., : len(some)] / unit
    return Recovered(lab.cells, *arrays)


def long_findings(lab: Lab) -> list[Finding]:
    """Return what is wrong with the keys of the first wrong row, where they are too many to be read one by one.

    Parts of them, each with one column of V, show where a weight is wrong; then its neighbours are read.
    """
    width, cells = lab.case.heads.head_size_v, lab.focus
    unit = NARROW if is_fp8(lab.case.dtypes.out) else 1.0
    wrong = by_row(lab.first.wrong)
    row = next((row for row in rows_of_case(lab.case) if wrong[row.token, row.head]), None)
    if row is None:
        return []
    low, high = 0, len(cells)
    while high - low > width:
        edges = np.unique(np.linspace(low, high, min(high - low, MOST_LAUNCHES // 2 * width) + 1).astype(np.int64))
        errors = np.zeros(len(edges) - 1)
        for first in range(0, len(errors), width):
            some = edges[first : first + width + 1]
            tensors = without_scores(lab.cleared())
            lab.set_values(tensors, cells[some[0] : some[-1]], np.repeat(np.arange(len(some) - 1), np.diff(some)), unit)
            output = lab.run(tensors)
            actual, expected = (part[row.token, row.head, : len(some) - 1] for part in (output.actual, output.expected))
            errors[first : first + width] = np.abs(np.nan_to_num(actual) - expected) / unit
        worst = int(np.argmax(errors))
        beside = max(0, width // 2 - int(edges[worst + 1] - edges[worst]))
        low, high = max(low, int(edges[worst]) - beside), min(high, int(edges[worst + 1]) + beside)
    found = recovered(lab, without_scores(lab.cleared()), cells[low:high])
    if found is None or not found.far[row.token, row.head].any():
        return []
    reading = _reading(found, lab.case, row)
    reading.visible = tuple(lab.case.visibility.keys_of(row.position, lab.case.sequences[row.sequence].seq_len))
    return list(_of_row(reading, found.cells, lab.case))


def heatmap_of(found: Recovered, uniform: Recovered, case: AttentionCase) -> Heatmap | None:
    """Return the weights around the most wrong row, with the slots of the last page behind the sequence's end.

    ``uniform`` are the weights for equal scores, which tell what each row sees.
    """
    error = np.abs(np.nan_to_num(found.actual, nan=1.0) - found.expected)
    error = np.where(found.wrong, error, 0.0).sum(axis=-1)
    rows = rows_of_case(case)
    if not rows:
        return None
    worst = max(rows, key=lambda row: float(error[row.token, row.head]))
    same = [row for row in rows if (row.sequence, row.head) == (worst.sequence, worst.head)]
    first = max(0, min(worst.query - ROWS // 2, len(same) - ROWS))
    shown = same[first : first + ROWS]
    places = found.cells.keys_of(worst.sequence, worst.kv_head), found.cells.tail_of(worst.sequence, worst.kv_head)
    cells = np.concatenate(places)
    start = max(0, min(_first_key(found, shown, cells), worst.position + 1 - KEYS // 2))
    cells = cells[start : start + KEYS]
    return Heatmap(
        worst.sequence,
        worst.head,
        tuple(row.query for row in shown),
        start,
        case.sequences[worst.sequence].seq_len,
        _weights(found.actual, shown, cells),
        _weights(found.expected, shown, cells),
        tuple(
            "".join("1" if weight > 0 else "0" for weight in row) for row in _weights(uniform.expected, shown, cells)
        ),
        uniform=found is uniform,
    )


def _first_key(found: Recovered, rows: list[Row], cells: Array) -> int:
    """Return the first key that any of the rows attends or should attend."""
    used = np.zeros(len(cells), dtype=np.bool_)
    for row in rows:
        for weights in (found.actual, found.expected):
            used |= (cells >= 0) & ~(np.abs(weights[row.token, row.head, cells]) < 1e-6)
    places = np.flatnonzero(used)
    return int(places[0]) if len(places) else 0


def _weights(weights: Array, rows: list[Row], cells: Array) -> tuple[tuple[float, ...], ...]:
    picked = (np.where(cells >= 0, weights[row.token, row.head, cells], -1.0) for row in rows)
    return tuple(tuple(round(float(weight), 6) if np.isfinite(weight) else -1.0 for weight in row) for row in picked)


Rule: TypeAlias = tuple[bool, Reason, str, bool]
Kind: TypeAlias = Literal["head", "stale", "tail", "causal", "window", "mask", "bias", "own", "foreign", "unowned"]
"""Where a cell lies that a row must not attend: in another KV head, a cache slot of a new token, behind the sequence's
end, behind the row, before its window or chunk, hidden by a custom mask or by the bias, in another page of its
sequence, in another sequence, in a page of no sequence."""

_REASONS: Final[dict[Kind, Reason]] = {
    "causal": "causal",
    "window": "window",
    "mask": "mask",
    "bias": "bias",
    "tail": "tail",
    "stale": "foreign sequence",
    "head": "head mapping",
    "own": "page",
    "foreign": "foreign sequence",
    "unowned": "page",
}

DEEPEST: Final[tuple[Reason, ...]] = ("head mapping", "foreign sequence")
"""Reasons from which others of the same case follow."""
ATTENDED: Final = 0.3
"""Share of a row's largest weight from which a cell counts as attended; all scores are equal."""
TWICE: Final = 1.6
"""Weights beyond this many times the smallest are those of keys that count twice."""
HIDDEN_BY_ITS_BIT: Final = "hidden by the custom mask, whose bit is 0 there"
EVEN: Final = 0.05
"""How far a number may be from a whole one, and weights from each other."""
MOST_SURPLUS: Final = 256
"""More keys than this are not thought to be counted beside those attended."""
SMALLEST_TILE: Final = 16
MANY: Final = 64
"""Keys of a row that attends those before and behind others that it misses."""


@dataclass
class Reading:
    """What one row attends wrongly.

    ``extra`` maps cells to where they lie; ``total`` is the sum of all weights beside the right sum. ``doubled`` says
    whether the keys in ``twice`` weigh whole times what others do, and the sum is right or as much too large.
    """

    row: Row
    visible: tuple[int, ...]
    missing: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    extra: dict[int, Kind] = field(default_factory=dict)
    total: float = 1.0
    attended: int = 0
    doubled: bool = True

    @property
    def right(self) -> bool:
        """Whether the row attends the right keys."""
        return not (self.missing or self.twice or self.extra)

    @property
    def kinds(self) -> set[Kind]:
        """Where the cells lie that the row must not attend."""
        return set(self.extra.values())

    @property
    def even(self) -> bool:
        """Whether the surplus is a whole number of keys."""
        return self.total > 0 and abs(self.attended / self.total - self.attended - self.surplus) < 0.05

    @property
    def surplus(self) -> int:
        """How many keys more than it attends the row's denominator counts."""
        return round(self.attended / self.total) - self.attended if self.total > 0 else 0


def reason_of(kind: Kind) -> Reason:
    """Return the reason for a key that a row attends and must not."""
    return _REASONS[kind]


def readings(found: Recovered, case: AttentionCase) -> list[Reading]:
    """Return what each row attends wrongly whose weights are wrong, row by row."""
    wrong = by_row(found.far) & by_row(np.isfinite(found.actual))  # a row never written is no reading
    return [_reading(found, case, row) for row in rows_of_case(case) if wrong[row.token, row.head]]


def _reading(found: Recovered, case: AttentionCase, row: Row) -> Reading:
    actual, expected = found.actual[row.token, row.head], found.expected[row.token, row.head]
    own = found.cells.keys_of(row.sequence, row.kv_head)
    visible = tuple(int(position) for position in np.flatnonzero((own >= 0) & (expected[own] > 0)))
    finite = np.where(np.isfinite(actual), actual, 0.0)
    attended = finite > ATTENDED * max(finite.max(initial=0.0), 1e-6)
    reading = Reading(row, visible, total=float(finite.sum() / max(expected.sum(), 1e-30)))
    smallest = finite[attended].min() if attended.any() else 1.0
    one = expected[expected > 0].min() if (expected > 0).any() else 1.0
    for position in visible:
        cell = int(own[position])
        if not attended[cell]:
            reading.missing.append(position)
        elif finite[cell] / smallest > TWICE * expected[cell] / one:
            reading.twice.append(position)
    for cell in np.flatnonzero(attended & ~(expected > 0)).tolist():
        reading.extra[cell] = kind_of_cell(found.cells, case, row, cell)
    reading.attended = round(float((finite[attended] / smallest).sum()))
    times = np.array([finite[own[each]] / smallest * one / expected[own[each]] for each in reading.twice])
    counted = float(finite[attended].sum() / smallest / max(np.count_nonzero(attended), 1))
    sums = min(abs(reading.total - 1.0), abs(reading.total - counted)) <= FAR * reading.total
    reading.doubled = bool((np.abs(times - np.round(times)) < EVEN * times).all()) and sums
    return reading


def kind_of_cell(cells: Cells, case: AttentionCase, row: Row, cell: int) -> Kind:
    """Return where a cell lies that a row must not attend."""
    owners = cells.owners.get((int(cells.block[cell]), int(cells.slot[cell])), [])
    own = [owner for owner in owners if owner.sequence == row.sequence]
    if not own:
        return "foreign" if owners else "unowned"
    position = own[0].position
    kinds: tuple[tuple[Kind, bool], ...] = (
        ("tail", position >= case.sequences[row.sequence].seq_len),
        ("head", bool(cells.head[cell] != row.kv_head)),
        ("stale", not own[0].held),
        ("window", position >= row.end and isinstance(case.mask, Lookahead)),
        ("causal", position >= row.end),
        ("window", case.visibility.hides(row.position, position)),
        ("mask", not sees(case, row.sequence, row.query, position)),
        ("own", not _biased(case)),
    )
    return next((kind for kind, holds in kinds if holds), "bias")


def _biased(case: AttentionCase) -> bool:
    return case.qq_bias is not None and case.qq_bias.kind in ("tree", "diagonal")


def mask_findings(found: Recovered, case: AttentionCase, wrong_rows: Array) -> list[Finding]:
    """Return what is wrong with the keys that rows attend, the most telling first; empty where nothing is.

    ``wrong_rows`` bool ``[num_tokens, num_query_heads]`` are the rows whose output is wrong: they are shown first.
    """
    overwritten = _of_decodes(found, case)
    if overwritten is not None:
        return [overwritten]
    all_readings = sorted(readings(found, case), key=lambda each: not wrong_rows[each.row.token, each.row.head])
    findings: dict[str, Finding] = {}
    for reading in sorted((each for each in all_readings if not each.right), key=_how_telling):
        uneven = None if reading.missing or reading.extra else _uneven(reading, found, case)
        for finding in [uneven] if uneven is not None else _of_row(reading, found.cells, case):
            known = findings.get(finding.reason)
            findings[finding.reason] = finding if known is None or known.vague else known
    counted = [reading for reading in all_readings if reading.right]
    if counted and not findings:
        return [_uneven(counted[0], found, case) or _of_sums(counted, case)]
    return sorted(findings.values(), key=lambda finding: (finding.vague, finding.reason not in DEEPEST))


def _of_decodes(found: Recovered, case: AttentionCase) -> Finding | None:
    """Return that each wrong row i attends what the last token of sequence i sees, all of it in the cache.

    So it is where a decode writes one row for each sequence, also for those of several tokens. None if it is not so.
    One such row alone may attend stale keys for another reason.
    """
    wrong = {reading.row.token for reading in readings(found, case)}
    rows = [row for row in rows_of_case(case) if row.token in wrong]
    if not all(row.token < len(case.sequences) and _decoded(found, case, row) for row in rows):
        return None
    first = next((row for row in rows if case.reads_packed[row.sequence] and not _is_last_of(row, case)), None)
    if first is None:
        return None
    words = (
        f"row {first.token} of the output, {first.words}, attends what the last token of sequence {first.token} sees, "
        "all of it in the cache: a decode of that sequence writes a row that is of another token"
        + f"{OR}it attends stale keys of the cache"
        * (len(wrong) == 1)
    )
    return Finding("foreign sequence", words, vague=len(wrong) == 1)


def _is_last_of(row: Row, case: AttentionCase) -> bool:
    """Return whether a row is the last token of the sequence with the number of its token."""
    return row.sequence == row.token and row.query == case.sequences[row.token].query_len - 1


def _decoded(found: Recovered, case: AttentionCase, row: Row) -> bool:
    """Return whether a row attends what the last token of the sequence with its token's number sees, in the cache."""
    sequence, actual = case.sequences[row.token], np.nan_to_num(found.actual[row.token, row.head])
    last = case.visibility.position(sequence.query_len - 1, sequence.context_len)
    seen = case.visibility.keys_of(last, sequence.seq_len)
    attended = np.flatnonzero(actual > ATTENDED * max(actual.max(initial=0.0), 1e-6)).tolist()
    places = [(int(found.cells.block[cell]), int(found.cells.slot[cell])) for cell in attended]
    owners = [owner for place in places for owner in found.cells.owners.get(place, []) if place[0] != PACKED]
    positions = sorted(owner.position for owner in owners if owner.sequence == row.token)
    return positions == list(seen) and {int(found.cells.head[cell]) for cell in attended} == {row.kv_head}


def _uneven(reading: Reading, found: Recovered, case: AttentionCase) -> Finding | None:
    """Return which keys weigh more than others though their scores are equal.

    None where the sum of all is wrong, and for keys that are counted several times.
    """
    row, place = reading.row, (reading.row.token, reading.row.head)
    own = found.cells.keys_of(row.sequence, row.kv_head)[list(reading.visible)]
    ratio = found.actual[place][own] / found.expected[place][own]
    if len(ratio) < 2 or abs(reading.total - 1.0) > FAR:
        return None
    edge = int(np.argmax(np.abs(np.diff(ratio)))) + 1
    before, after = reading.visible[:edge], reading.visible[edge:]
    number = float(np.median(ratio[:edge]) / np.median(ratio[edge:]))
    if reading.twice and abs(max(number, 1 / number) - round(max(number, 1 / number))) < FAR:
        return None
    times = factor(number)
    what = f"{_subject(row)}: {keys(before)} weigh {times} times as much as they should beside {keys(after)}"
    family = FAMILIES[case.family]
    parts = case.launch.path == "3d" or (family.one_token_each and family.has_several_paths)
    why = "two parts are merged with wrong weights" if parts else "an earlier tile or segment is not rescaled"
    return Finding("segment" if parts else "tile", f"{what}, with equal scores: {why}")


def _of_sums(counted: list[Reading], case: AttentionCase) -> Finding:
    """Return what is wrong with rows that attend the right keys with a wrong sum of their weights."""
    totals = [reading.total for reading in counted]
    factor_only = max(totals) - min(totals) <= 0.01 * abs(max(totals))
    several = len({reading.attended for reading in counted}) > 1
    surplus = {reading.surplus for reading in counted if reading.even}
    if several and len(surplus) == 1 and min(surplus) and all(reading.even for reading in counted):
        return denominator(counted[0], case)
    if (factor_only and (several or not counted[0].surplus)) or counted[0].surplus > MOST_SURPLUS:
        words = (
            f"{_subject(counted[0].row)} attends the right keys, but its values have a factor of {factor(totals[0])}"
        )
        return Finding("scale", words, vague=not several or not is_plausible(totals[0]))
    return denominator(counted[0], case)


def _how_telling(reading: Reading) -> tuple[bool, int]:
    return not reading.missing and not reading.extra, len(reading.missing) + len(reading.extra)


def _of_row(reading: Reading, cells: Cells, case: AttentionCase) -> Iterator[Finding]:
    """Yield what one row does wrong."""
    if reading.extra or reading.twice:
        replaced = _replaced(reading, cells, case)
        if replaced is not None:
            yield replaced
            return
    for kind in _REASONS:
        if cells_of_kind := [cell for cell, other in reading.extra.items() if other == kind]:
            found = _attended(reading.row, kind, cells_of_kind, cells, case)
            if kind == "foreign" and not reading.missing:  # perhaps by the next row of the table
                found = msgspec.structs.replace(found, words=f"{found.words}, beside all that it sees", vague=True)
            yield found
    if reading.missing:
        yield _missed(reading, case)
    if reading.twice:
        yield Finding("tile", f"{_subject(reading.row)} counts {keys(reading.twice)} twice", vague=not reading.doubled)


def _replaced(reading: Reading, cells: Cells, case: AttentionCase) -> Finding | None:
    """Return which cells a row reads in place of its own; None where it reads more than those, or fewer."""
    row, missing, kinds = reading.row, reading.missing, reading.kinds
    if missing and kinds == {"head"}:
        wrong = sorted({int(cells.head[cell]) for cell in reading.extra})
        return Finding("head mapping", f"head {row.head} reads KV head {ranges(wrong)}, should read {row.kv_head}")
    if missing and "foreign" in kinds and (len(missing) == len(reading.visible) or _same_places(reading, cells)):
        places = ((int(cells.block[cell]), int(cells.slot[cell])) for cell in reading.extra)
        others = sorted({cells.owners[place][0].sequence for place in places if place in cells.owners} - {row.sequence})
        words = f"reads the keys of sequence {ranges(others)} in place of its own"
        return Finding("foreign sequence", f"{_subject(row)} {words}")
    enough = 0 < len(missing) <= len(reading.extra) + len(reading.twice)
    return _moved(reading, cells) if enough and (reading.twice or not kinds <= {"causal"}) else None


def _moved(reading: Reading, cells: Cells) -> Finding | None:
    """Return where a row reads the keys that it misses, None where that is in other heads or packed tensors."""
    row, missing, first = reading.row, reading.missing, reading.missing[0]
    instead = _instead(reading, cells, first)
    if instead is None or not reading.kinds <= {"own", "foreign", "unowned", "tail", "causal", "window"}:
        return None
    wrong, right = (place_words(place, cells) for place in (instead, cells.of_key(row.sequence, first)))
    words = f"{_subject(row)} reads {keys(missing)} at wrong places: key {first} from {wrong}, should be {right}"
    numbers = (_numbers(instead, cells), _numbers(cells.of_key(row.sequence, first), cells))
    cut = next(filter(None, (cut_words(read, own) for read, own in zip(*numbers, strict=True))), "")
    return Finding("page", words + cut)


def _numbers(place: tuple[int, int], cells: Cells) -> tuple[int, int]:
    """Return the numbers by which a kernel may find a place: of its page, and of its slot among those of all pages."""
    page = place[0] + cells.pages.first_block
    return page, page * cells.case.pages.block_size + place[1]


def _same_places(reading: Reading, cells: Cells) -> bool:
    """Return whether a row reads the same positions of another sequence."""
    positions = set()
    for cell in reading.extra:
        owners = cells.owners.get((int(cells.block[cell]), int(cells.slot[cell])), [])
        positions |= {owner.position for owner in owners if owner.sequence != reading.row.sequence}
    return set(reading.missing) <= positions


def _instead(reading: Reading, cells: Cells, position: int) -> tuple[int, int] | None:
    """Return the place that a row probably reads for a key: with the same slot of a page, else the first one."""
    own = [cells.of_key(reading.row.sequence, twice) for twice in reading.twice]
    places = own + [(int(cells.block[cell]), int(cells.slot[cell])) for cell in reading.extra]
    slot = cells.of_key(reading.row.sequence, position)[1]
    return next((place for place in places if place[1] == slot), places[0] if places else None)


def place_words(place: tuple[int, int], cells: Cells) -> str:
    """Return a place in words: the slot of a page, or the row of the packed tensors."""
    block, slot = place
    if block == PACKED:
        return f"row {slot} of the new keys and values"
    return f"slot {slot} of page {block + cells.pages.first_block}"


def _subject(row: Row) -> str:
    return f"{row.words}, head {row.head}," if row.head else row.words


def _attended(row: Row, kind: Kind, of_kind: list[int], cells: Cells, case: AttentionCase) -> Finding:
    """Return the finding of cells that a row attends beside its own."""
    place = (int(cells.block[of_kind[0]]), int(cells.slot[of_kind[0]]))
    owners = [cells.owners.get((int(cells.block[cell]), int(cells.slot[cell])), [])[:1] for cell in of_kind]
    positions = sorted(owner.position for found in owners for owner in found)
    first, last = (positions[0], positions[-1]) if positions else (0, 0)
    subject, where, far = _subject(row), place_words(place, cells), row.position - last
    without_it = positions[:1] == [0] and len(positions) == case.visibility.first(row.position)  # all it hides
    beyond = "one too far" if far == case.window else f"{far - case.window + 1} too far"
    window = f"distance {far}, {beyond}" if len(positions) == 1 or not without_it else "as if there were none"
    heads = ranges(int(cells.head[cell]) for cell in of_kind)
    what = f"{subject} attends {keys(positions)}"
    behind = f"{count(first - row.position, 'key')} behind its own, key {row.position}"
    sequence = owners[0][0].sequence if owners[0] else 0
    words: dict[Kind, str] = {
        "causal": f"{what}: hidden by causality ({behind})",
        "window": _outside_window(what, row, positions, window, case) if positions else what,
        "mask": f"{what}: {HIDDEN_BY_ITS_BIT}",
        "bias": f"{what}: hidden by the query-query bias, which is -inf there",
        "tail": f"{what}: behind the sequence's end ({count(case.sequences[row.sequence].seq_len, 'key')}), in {where}",
        "stale": f"{what} from the cache, in {where}, which is stale there",
        "head": f"{subject} also reads KV head {heads}, should read {row.kv_head} only",
        "own": f"{what} from {where}",
        "foreign": f"{subject} attends key {first} of sequence {sequence}",
        "unowned": f"{subject} attends {where}, which belongs to no sequence",
    }
    last_alone = [case.sequences[row.sequence].seq_len - 1] == positions == [row.end]  # or as if there were no end
    alone = (without_it and len(positions) == 1) or last_alone
    return Finding(reason_of(kind), words[kind], vague=kind == "window" and alone)


def _outside_window(what: str, row: Row, positions: list[int], window: str, case: AttentionCase) -> str:
    """Return in words that a row attends keys outside of its window or chunk."""
    if positions[-1] >= row.end:
        too_far = positions[-1] - row.end + 1
        all_behind = positions[-1] == case.sequences[row.sequence].seq_len - 1
        beyond = f"{too_far} too far" if not all_behind else "as if it had no end there" if too_far > 1 else ""
        ends = f"hidden by a window of two sides, which ends with key {row.end - 1}"
        return f"{what}: {ends}" + (f" ({beyond})" if beyond else "")
    if not case.window or row.position - positions[-1] < case.window:  # then the window hides no such key
        return f"{what}: hidden by its chunk, which begins with key {case.visibility.first(row.position)}"
    return f"{what}: hidden by the window of {case.window} ({window})"


def _missed(reading: Reading, case: AttentionCase) -> Finding:
    """Return the finding of keys that a row does not attend though it sees them."""
    row, missing, visible = reading.row, reading.missing, reading.visible
    context, window = case.sequences[row.sequence].context_len, case.window
    first, last = missing[0], missing[-1]
    unbroken = last - first + 1 == len(missing)
    at_window = case.visibility.is_filled(row.position) and first == visible[0] and last < context
    edge = "the first" if len(missing) == 1 else f"the first {len(missing)}"
    first_row, all_but_own = row.query == 0, "all but its own, as with a window of 1"
    only_new = first_row and context > 0 and case.reads_packed[row.sequence]
    begins_tile = row.position % SMALLEST_TILE == 0  # such a tile, or a segment, may be lost as a whole
    alone = case.sequences[row.sequence].query_len == 1  # then its own is the last key too
    from_chunk = bool(context) and missing == [key for key in visible if key > row.query]
    as_if = f"it sees keys as if it were key {row.query}, counted without the context"
    as_if += ", or reads key 0 in place of all others" * first_row
    behind, by_bits = [key for key in visible if key > row.position], "mask" in reading.kinds
    custom = isinstance(case.mask, Custom)
    ahead = isinstance(case.mask, Lookahead) and first >= row.position and last == visible[-1]
    chunk = case.mask.size if isinstance(case.mask, Chunks) else 0
    ends_chunk = bool(chunk) and (row.position + 1) % chunk == 0 and len(visible) == chunk
    hidden = "the query-query bias, read at another place, may hide them"
    rules: tuple[Rule, ...] = (
        (_biased(case), "bias", hidden, True),
        (by_bits, "mask", "its bits of the custom mask are 1 there", False),
        (ahead, "window", f"within its window of two sides, which ends with key {row.end - 1}", False),
        (missing == behind, "causal", "behind its own, where no causal mask hides keys", False),
        (
            ends_chunk and len(missing) == len(visible),
            "window",
            f"all of its chunk, of which its own is the last key, as if it were in the next chunk of {chunk}",
            chunk == 1,
        ),
        (len(missing) == len(visible), "segment", "all that it sees", True),
        (from_chunk and context > 1, "causal", as_if, first_row),
        (custom and missing == [row.position], "mask", "its own, whose bit of the custom mask is 1", True),
        (
            missing == [row.position] and isinstance(case.mask, (Full, Lookahead)),
            "window" if window or isinstance(case.mask, Lookahead) else "tile",
            "its own, though it sees keys behind it too",
            True,
        ),
        (
            missing == [row.position],
            "causal",
            "its own, which causality allows",
            begins_tile or only_new or from_chunk or alone,
        ),
        (unbroken and at_window, "window", f"{edge} of its window of {window}", False),
        (missing == list(visible[:-1]), "segment" if first_row else "window", all_but_own, first_row),
        (missing == [key for key in visible if key < context], "segment", "all of its context", False),
        (missing == [key for key in visible if key >= context], "segment", "all new tokens", False),
        *_edges(missing, visible, case),
    )
    lost = unbroken and visible[0] < first and last < visible[-1] and len(visible) > MANY
    reason, words, vague = next((rule[1:] for rule in rules if rule[0]), ("tile", "it attends the others", not lost))
    return Finding(reason, f"{_subject(row)} misses {keys(missing)}: {words}", vague)


def _edges(missing: list[int], visible: tuple[int, ...], case: AttentionCase) -> Iterator[Rule]:
    """Yield what is missed by the edge of a tile or page at which it begins or ends."""
    first, last, page = missing[0], missing[-1], case.pages.block_size
    tile = case.launch.tile_size or SMALLEST_TILE
    begins, ends = first % tile == 0, (last + 1) % tile == 0
    segment = case.launch.path == "3d" and (begins or ends)
    apart = last - first + 1 > len(missing)
    each_ends = apart and all((key + 1) % SMALLEST_TILE == 0 or key == visible[-1] for key in missing)
    yield (
        missing == [0] and len(visible) > 1,
        "tile",
        "the first that it sees: a mask, page or tile begins there",
        False,
    )
    yield each_ends, "segment", "each the last of a tile or of a part of its keys", False
    known = bool(case.launch.tile_size)  # else a launcher may choose larger tiles, and parts of several
    of_keys = f"a tile of {tile} keys" if known else "a tile or part of its keys"
    begin, end = f"{of_keys} begins at key {first}", f"{of_keys} ends with key {last}"
    yield segment, "segment", "a segment of its keys is lost" + f", in tiles of {tile}" * known, False
    yield begins and (last == visible[-1] or ends), "tile", begin, False
    yield first == visible[0] and ends, "tile", end, False
    yield (last + 1) % page == 0, "page", f"key {last} is the last of a page of {page}", False
    yield first % page == 0, "page", f"a page of {page} begins at key {first}", False
    yield last == visible[-1], "tail", "the last that it sees", False
    yield bool(case.window) and first == visible[0], "window", f"the first of its window of {case.window}", False


def denominator(reading: Reading, case: AttentionCase) -> Finding:
    """Return the finding of a denominator that counts keys whose values do not count, or leaves out some."""
    row, surplus = reading.row, reading.surplus
    sums = f"the weights of {row.words}, head {row.head}, sum to {reading.total:.4g}"
    if surplus < 0:
        words = f"{sums}: the denominator is too small, as if it left out {count(-surplus, 'key')}"
        return Finding("denominator", words, vague=True)
    first = reading.visible[0] if reading.visible else 0
    where = f"behind the end, as {keys(range(row.position + 1, row.position + 1 + surplus))}"
    if case.window and first >= surplus and _fits_before(first, surplus):
        where = f"before the window of {case.window}, as {keys(range(first - surplus, first))}"
    more, values = f"counts {count(surplus, 'key')} more", "its value" if surplus == 1 else "their values"
    sink = case.sinks is not None and surplus == 1
    like_a_key = "counts the sink, which weighs nothing in this launch, like a key, or " * sink
    words = f"{sums}: the denominator {like_a_key}{more}, {where} would be, without {values}"
    place = where.partition(",")[0].partition(" of ")[0]
    return Finding("denominator", words, True, f"denominator: it counts keys {place} without their values")


def _fits_before(first: int, surplus: int) -> bool:
    """Return whether a tile that holds the window's first key has so many keys before it."""
    return any(first % tile == surplus for tile in (16, 32, 64, 128))
