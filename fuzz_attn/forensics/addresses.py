"""Addresses: columns of V, keys and queries that are read from wrong places, found by numbers that name their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import torch

from fuzz_attn.forensics.attended_keys import Recovered, place_words, recovered
from fuzz_attn.forensics.explanation import Finding, Row, is_plausible, ranges, rows_of_case
from fuzz_attn.forensics.lab import FAR, Array, Lab, by_row, without_scores
from fuzz_attn.forensics.score_mistakes import named_factor
from fuzz_attn.inputs.storage import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.logits import score_scale

DIGITS: Final = 8
FEW_KEYS: Final = 4
"""Rows with fewer keys do not tell wrong scores from a wrong softmax."""
SPREAD: Final = 4.0
"""Logit between the smallest and the largest digit."""


def column_findings(lab: Lab) -> Iterator[Finding]:
    """Yield that values come from outside of V, or columns of the output from other columns of V."""
    tensors = without_scores(lab.cleared())
    lab.set_all_values(tensors, np.ones(lab.case.heads.head_size_v))
    inside = lab.run(tensors).far
    if inside.any():
        lab.fill_memory(tensors, 1.0)
        fixed = inside & ~lab.run(tensors).far
        for row in rows_of_case(lab.case):
            if fixed[row.token, row.head].any() and not (inside & ~fixed)[row.token, row.head].any():
                columns = np.flatnonzero(fixed[row.token, row.head]).tolist()
                where = f"columns {ranges(columns)} of " * (len(columns) < lab.case.heads.head_size_v)
                yield Finding(
                    "address",
                    f"{row.words}, head {row.head}: {where}its values come from memory between those of V: a wrong "
                    "stride or offset",
                )
                return
    yield from _moved_columns(lab)


def _moved_columns(lab: Lab) -> Iterator[Finding]:
    columns = np.arange(lab.case.heads.head_size_v)
    read = _columns_read(lab, columns)
    for row in rows_of_case(lab.case):
        wrong = np.flatnonzero((read[row.token, row.head] != columns) & ~lab.untouched["out"][row.token, row.head])
        if len(wrong):
            first = int(wrong[0])
            source = int(read[row.token, row.head, first])
            known = 0 <= source < len(columns)
            what = f"column {first} is that of column {source} of V" if known else f"column {first} is not that of V"
            yield _from_key(lab, row, f"columns {ranges(wrong.tolist())} of the output", what)
            return


def _from_key(lab: Lab, row: Row, columns: str, what: str) -> Finding:
    """Return the finding of wrong columns, with the first key whose value is wrong where it is not the first of all."""
    own = lab.cells.keys_of(row.sequence, row.kv_head)[: row.end]
    first, size = _first_wrong_key(lab, row, own), lab.case.pages.block_size
    base = f"{row.words}, head {row.head}: {columns} come from wrong addresses of V"
    if not first or (first + 1) % size == 0:  # what is read for a later page may be a part of the last key of a page
        return Finding("address", f"{base}: {what}")
    place = place_words((int(lab.cells.block[own[first]]), int(lab.cells.slot[own[first]])), lab.cells)
    words = f"{base}, from key {first} on, which is in {place}: {what}"
    return Finding("page" if first % size == 0 else "address", words)


def _first_wrong_key(lab: Lab, row: Row, own: Array) -> int:
    """Return the first key of a row whose value is read in wrong columns, by halving."""
    columns = np.arange(lab.case.heads.head_size_v)
    right, wrong = 0, len(own)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        read = _columns_read(lab, columns, own[middle:])[row.token, row.head]
        right, wrong = (right, middle) if (read != columns).any() else (middle, wrong)
    return right


def _columns_read(lab: Lab, columns: Array, without: Array | None = None) -> Array:
    """Return the column of V that each element of the output comes from; negative where that cannot be told.

    The values of the cells ``without`` are 0.
    """
    read = np.zeros((lab.case.num_tokens, lab.case.heads.num_query_heads, len(columns)), dtype=np.int64)
    if len(columns) == 1:  # there is no other
        return read
    tensors = without_scores(lab.cleared())
    for place in _places(len(columns)):
        digits = 1 + columns // place % DIGITS
        lab.set_all_values(tensors, digits)
        if without is not None:
            lab.clear_values(tensors, without)
        actual = lab.run(tensors).actual
        first = actual[..., :1]
        scaled = actual / np.where(np.isfinite(first) & (np.abs(first) > 1e-6), first, 1.0) * digits[0]
        scaled = np.where(np.abs(scaled) < 100, scaled, 0.5)  # no digit, as NaN is none
        even = np.abs(scaled - np.round(scaled)) < 0.2
        read += np.where(even, np.round(scaled).astype(np.int64) - 1, -1000) * place
    empty = ~by_row(np.abs(actual) > 1e-6)  # no value at all: the masks tell more
    return np.where(empty[..., None], columns, read)


def key_findings(lab: Lab) -> Iterator[Finding]:
    """Yield a key whose score comes from the key in another place."""
    places = np.arange(len(lab.cells))
    for place in _places(len(lab.cells)):
        digits = places // place % DIGITS
        tensors, _ = _even_queries(lab)
        lab.set_all_keys(tensors, digits.astype(np.float64))
        found = recovered(lab, tensors)
        row = None if found is None else next((row for row in rows_of_case(lab.case) if _misread(found, row)), None)
        if found is not None and row is not None:
            times = _factor_of_all(lab, found)
            yield _misread_key(lab, found, row) if times is None else _scaled(lab, row, times)
            return


def _factor_of_all(lab: Lab, found: Recovered) -> float | None:
    """Return the factor on the scores that gives the weights of every misread row that tells one; None for none."""
    factors = []
    for row in (row for row in rows_of_case(lab.case) if _misread(found, row)):
        own = found.cells.keys_of(row.sequence, row.kv_head)[: row.end]
        actual, expected = (weights[row.token, row.head, own] for weights in (found.actual, found.expected))
        if len(own) > FEW_KEYS:
            factors.append(_factor_of(actual, expected))
    known = [times for times in factors if times is not None]
    same = bool(known) and is_plausible(known[0]) and max(known) - min(known) <= FAR * abs(known[0])
    return known[0] if same and len(known) == len(factors) else None


def _scaled(lab: Lab, row: Row, times: float) -> Finding:
    """Return that the scores of a row have a factor, in a launch without what may be wrong beside it."""
    without = " without the soft cap" * bool(lab.case.softcap)
    words = f"{row.words}, head {row.head}: the scores have a wrong scale ({named_factor(times, lab.case)}){without}"
    return Finding("scale", words)


def _misread(found: Recovered, row: Row) -> bool:
    """Return whether a row's weights are those of other keys; NaN says nothing of keys."""
    own = found.cells.keys_of(row.sequence, row.kv_head)[: row.end]
    finite = np.isfinite(found.actual[row.token, row.head, own]).all()
    return bool(finite and found.far[row.token, row.head].any())


def _misread_key(lab: Lab, found: Recovered, row: Row) -> Finding:
    own = found.cells.keys_of(row.sequence, row.kv_head)[: row.end]
    actual, expected = (weights[row.token, row.head, own] for weights in (found.actual, found.expected))
    ratio = np.where((actual > 0) & (expected > 0), actual / np.where(expected > 0, expected, 1.0), 1.0)
    usual = float(np.median(ratio[expected > 0])) if (expected > 0).any() else 1.0
    position = int(np.argmax(np.where(expected > 0, np.abs(np.log(ratio / usual)), -1.0)))
    place = place_words(found.cells.of_key(row.sequence, position), found.cells)
    return Finding(
        "address",
        f"{row.words}, head {row.head}: the score of key {position} does not come from the key in {place}, though its "
        "value does: K is read at wrong addresses",
        vague=row.position < FEW_KEYS,
    )


def _places(count: int) -> Iterator[int]:
    place = 1
    while place < count:
        yield place
        place *= DIGITS


def _even_queries(lab: Lab) -> tuple[AttentionTensors, float]:
    """Return tensors whose queries give each unit of a key ``SPREAD / DIGITS``, and that step.

    They have neither biases nor a soft cap, which may be wrong itself.
    """
    tensors = dataclasses.replace(without_scores(lab.cleared()), softcap=0.0)
    return tensors, _fill_digits(lab, tensors, np.ones(lab.case.num_tokens * lab.case.heads.num_query_heads))


def _fill_digits(lab: Lab, tensors: AttentionTensors, digits: Array) -> float:
    """Set each row of q to its digit in all columns, times a number; return what a unit of key and digit adds."""
    step = SPREAD / DIGITS
    gain = score_scale(tensors) * lab.case.heads.head_size
    fill_queries(lab, tensors, digits * (step / gain if gain else 0.0))
    return step


def fill_queries(lab: Lab, tensors: AttentionTensors, numbers: Array) -> None:
    """Set all columns of each row of q to one number."""
    rows = torch.from_numpy(numbers.astype(np.float32)).view(lab.case.num_tokens, -1, 1)
    query = bits_of(rows.to(tensors.query.dtype)).to(tensors.query.device)
    bits_of(tensors.query)[: lab.case.num_tokens] = query.expand(-1, -1, lab.case.heads.head_size)


def query_findings(lab: Lab) -> Iterator[Finding]:
    """Yield a row whose scores come from another row of q."""
    case, cells = lab.case, lab.cells
    heads = case.heads.num_query_heads
    count = case.num_tokens * heads
    parity = ((cells.slot + cells.block) % 2).astype(np.float64)
    read, wrong = np.zeros((case.num_tokens, heads), dtype=np.int64), False
    for place in _places(count):
        digits = np.arange(count) // place % DIGITS
        tensors, _ = _even_queries(lab)
        step = _fill_digits(lab, tensors, digits.astype(np.float64))
        lab.set_all_keys(tensors, parity)
        found = recovered(lab, tensors)
        if found is None:
            return
        wrong |= bool(found.far.any())
        read += place * _digits_read(lab, found, parity, step)
    if wrong:
        yield from _misread_query(lab, read, heads)


def _digits_read(lab: Lab, found: Recovered, parity: Array, step: float) -> Array:
    """Return the digit of the query that each row read; -1000 where a row does not tell it."""
    read = np.full(found.actual.shape[:2], -1000)
    for row in rows_of_case(lab.case):
        own = found.cells.keys_of(row.sequence, row.kv_head)
        weights = found.actual[row.token, row.head, own]
        odd, even = (weights[(parity[own] == value) & (weights > 0)] for value in (1, 0))
        if len(odd) and len(even):
            digit = np.log(odd.mean() / even.mean()) / step
            read[row.token, row.head] = round(float(digit)) if np.isfinite(digit) and abs(digit) < 2 * DIGITS else -1000
    return read


def _misread_query(lab: Lab, read: Array, heads: int) -> Iterator[Finding]:
    for row in rows_of_case(lab.case):
        number = int(read[row.token, row.head])
        if number == row.token * heads + row.head or number < 0:
            continue
        token, head = divmod(number, heads)
        if token == row.token:
            yield Finding("head mapping", f"{row.words}, head {row.head}, reads the query of head {head}")
        elif token < lab.case.num_tokens:
            other = next(other for other in rows_of_case(lab.case) if (other.token, other.head) == (token, head))
            yield Finding(
                "address",
                f"{row.words}, head {row.head}, reads the query of {other.words}, head {head}: q is read at wrong "
                "addresses",
            )
        else:
            continue
        return
    yield Finding("address", "queries are read at wrong addresses: the scores are those of other queries")


def latent_findings(lab: Lab) -> Iterator[Finding]:
    """Yield what is wrong with scores of keys that hold their values: a factor, or a column that is not where it is.

    Keys are unit vectors in the columns of their values, and have a digit of their place in the others.
    """
    tensors, heads = without_scores(lab.cleared()), lab.case.heads
    lost = list(_latent_columns_lost(lab))
    if lost:
        yield from lost
        return
    columns = range(heads.head_size_v, heads.head_size)
    gain = score_scale(tensors) * max(len(columns), 1)
    if not gain:
        return
    fill_queries(lab, tensors, np.full(lab.case.num_tokens * heads.num_query_heads, SPREAD / DIGITS / gain))
    lab.set_all_keys(tensors, (np.arange(len(lab.cells)) % DIGITS).astype(np.float64))
    found = recovered(lab, tensors)
    if found is None or not found.far.any():
        return
    some = list(dimension_findings(lab, columns))
    if some and sum(1 for column in columns if list(dimension_findings(lab, [column]))) < len(columns):
        yield from some
        return
    row = next(row for row in rows_of_case(lab.case) if found.far[row.token, row.head].any())
    own = found.cells.keys_of(row.sequence, row.kv_head)[: row.end]
    actual, expected = (weights[row.token, row.head, own] for weights in (found.actual, found.expected))
    times = _factor_of(actual, expected)
    if times is not None and abs(times) < FAR and heads.head_size_v > 1:  # the other columns count
        words = f"{row.words}, head {row.head}: columns {ranges(columns)} of q and K, which are no values, are left out"
        yield Finding("address", f"{words} of the scores")
    elif times is not None and is_plausible(times):
        of_values = _factor_of_values(lab)
        apart = of_values is not None and abs(of_values - 1) < FAR < abs(times - 1)
        part = f" of columns {ranges(columns)} of q and K, which are no values," * apart
        words = f"{row.words}, head {row.head}: the scores{part} have a wrong scale ({named_factor(times, lab.case)})"
        yield Finding("scale", words)


def _factor_of(actual: Array, expected: Array) -> float | None:
    """Return the factor on the scores of a row that gives its weights; None where none does, or for few keys."""
    if len(actual) <= FEW_KEYS or not ((actual > 0).all() and (expected > 0).all()):
        return None
    x, y = (np.log(weights) - np.log(weights).mean() for weights in (expected, actual))
    times = float((x * y).sum() / max(float((x**2).sum()), 1e-30))
    return times if np.abs(y - times * x).max() < FAR * np.abs(y - x).max() else None


def _latent_columns_lost(lab: Lab) -> Iterator[Finding]:
    """Yield the columns of the values of a latent cache that do not count in its keys' scores, of some of them.

    Each in turn is the only one of q that is not 0. One key of the last row is 1 there, and all others are 0.
    """
    size, row = lab.case.heads.head_size_v, rows_of_case(lab.case)[-1]
    cells = np.unique(lab.cells.keys_of(row.sequence, row.kv_head)[: row.end])
    if size < 2 or len(cells) < 2 or cells[0] < 0:
        return
    tried, lost = _some_columns(size), []
    for column in tried:
        weights = _weights_of_a_column(lab, row, cells, column)
        if weights is None:
            return
        actual, expected = weights
        even = 1.0 / len(cells)
        if abs(actual - even) < FAR * abs(expected - even):
            lost.append(column)
    if lost:
        yield _columns_lost(row, lost, tried, "the latent part, whose numbers are also the values", size)


def _weights_of_a_column(lab: Lab, row: Row, cells: Array, column: int) -> tuple[float, float] | None:
    """Return the actual and the expected weight of the only cell that is 1 in a column; None without scores.

    It is the first one. Its score is 2, and that of all others 0.
    """
    tensors = without_scores(lab.cleared())
    if not score_scale(tensors):
        return None
    _fill_column(lab, tensors, column)
    places = np.where(np.arange(len(cells)) == 0, column, (column + 1) % lab.case.heads.head_size_v)
    lab.set_values(tensors, cells, places, 1.0)
    probed = lab.run(tensors)
    return float(probed.actual[row.token, row.head, column]), float(probed.expected[row.token, row.head, column])


def _factor_of_values(lab: Lab) -> float | None:
    """Return the factor on the scores of the columns that are values too, from the first one; None where unknown."""
    row = rows_of_case(lab.case)[-1]
    cells = np.unique(lab.cells.keys_of(row.sequence, row.kv_head)[: row.end])
    if lab.case.heads.head_size_v < 2 or len(cells) < 2 or cells[0] < 0:
        return None
    weights = _weights_of_a_column(lab, row, cells, 0)
    if weights is None or not all(0 < weight < 1 for weight in weights):
        return None
    actual, expected = (np.log(weight * (len(cells) - 1) / (1 - weight)) for weight in weights)
    return float(actual / expected) if expected else None


def _columns_lost(row: Row, lost: list[int], tried: list[int], whole: str, size: int) -> Finding:
    """Return that columns are left out of the scores, which may be the ``whole`` of those tried."""
    everything = len(lost) == len(tried) and bool(whole)
    columns = f"columns {ranges(range(size))}" if everything else f"column{'s' * (len(lost) > 1)} {ranges(lost)}"
    part = f", {whole}," if everything else f" (of {len(tried)} tried)" * (len(tried) < size and len(lost) > 1)
    verb = "is" if len(lost) == 1 else "are"
    words = f"{row.words}, head {row.head}: {columns} of q and K{part} {verb} left out of the scores"
    return Finding(
        "address", words, cause=f"address: {'all' if everything else 'some'} columns are left out of the scores"
    )


def _some_columns(size: int) -> list[int]:
    """Return the first columns of a head, some of the others, and the last one."""
    return sorted({*range(min(size, 16)), *range(0, size, max(1, size // 8)), size - 1})


def _fill_column(lab: Lab, tensors: AttentionTensors, column: int) -> None:
    """Set all of q to 0 but one column, which adds 2 to the score of a key that is 1 there."""
    one = torch.zeros(lab.case.heads.head_size).index_fill(0, torch.tensor([column]), 2.0 / score_scale(tensors))
    bits = bits_of(one.to(tensors.query.dtype)).to(tensors.query.device)
    bits_of(tensors.query)[: lab.case.num_tokens] = bits


def dimension_findings(lab: Lab, columns: Iterable[int] | None = None) -> Iterator[Finding]:
    """Yield a column in which query and key do not meet, of some columns or of a choice of all."""
    size = lab.case.heads.head_size
    for column in _some_columns(size) if columns is None else columns:
        tensors = without_scores(lab.cleared())
        if not score_scale(tensors):
            return
        _fill_column(lab, tensors, column)
        keys = np.zeros((len(lab.cells), size))
        keys[:, column] = (lab.cells.slot + lab.cells.block) % 2
        lab.set_all_keys(tensors, keys)
        row = rows_of_case(lab.case)[-1]
        own = lab.cells.keys_of(row.sequence, row.kv_head)[: row.end]
        cells = np.unique(own[-size:])
        found = recovered(lab, tensors, cells)
        if found is not None and found.far.any():
            yield _misplaced_column(lab, by_row(found.far), column, cells)
            return


def _misplaced_column(lab: Lab, wrong: Array, column: int, cells: Array) -> Finding:
    """Return which column of its keys a column of q meets, in the first row where that is another one."""
    rows = rows_of_case(lab.case)
    row = next(row for row in rows if wrong[row.token, row.head])
    met = _column_met(lab, row, column, cells)
    if met is None:
        words = f"{row.words}, head {row.head}: column {column} of q and K is left out of the scores"
        return Finding("address", words)
    where = f"column {met} of the key" if 0 <= met < lab.case.heads.head_size else "no column of the key that is known"
    some = any(not wrong[other.token, other.head] for other in rows if other.kv_head == row.kv_head)
    what = "q is" if some else "q or K is"
    words = f"{row.words}, head {row.head}: column {column} of q meets {where}: {what} read at wrong addresses"
    return Finding("address", words)


def _column_met(lab: Lab, row: Row, column: int, cells: Array) -> int | None:
    """Return the column of the keys that a column of q meets in a row; negative where that cannot be told.

    None where it changes no score at all.
    """
    size, met, digits = lab.case.heads.head_size, 0, []
    parity = ((lab.cells.slot + lab.cells.block) % 2).astype(np.float64)
    step = SPREAD / DIGITS
    for place in _places(size):
        tensors = without_scores(lab.cleared())
        one = torch.zeros(size).index_fill(0, torch.tensor([column]), step / score_scale(tensors))
        bits_of(tensors.query)[: lab.case.num_tokens] = bits_of(one.to(tensors.query.dtype)).to(tensors.query.device)
        lab.set_all_keys(tensors, parity[:, None] * (1 + np.arange(size) // place % DIGITS))
        found = recovered(lab, tensors, cells)
        digit = _digits_read(lab, found, parity, step)[row.token, row.head] if found is not None else 0
        digits.append(int(digit))
        met += place * int(digit - 1) if 1 <= digit <= DIGITS else -(size * DIGITS)
    return met if any(digits) else None
