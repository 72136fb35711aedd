"""Leaks: which memory that no kernel may read makes the output NaN or Inf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal

import msgspec
import numpy as np
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.accesses import is_padded
from fuzz_attn.forensics.attended_keys import MOST_LAUNCHES, Kind, kind_of_cell, place_words
from fuzz_attn.forensics.explanation import Finding, Reason, Row, keys, rows_of_case
from fuzz_attn.forensics.lab import PACKED, Array, Lab, by_row, clear, distinct, without_scores
from fuzz_attn.inputs.storage import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors

_WHERE: Final[dict[Kind, tuple[Reason, str]]] = {
    "tail": ("tail", "behind the sequence's end"),
    "window": ("window", "a key that has left the window"),
    "stale": ("foreign sequence", "a slot that does not hold its new token yet"),
    "foreign": ("foreign sequence", "a slot of another sequence"),
    "unowned": ("page", "a page of no sequence"),
    "causal": ("causal", "a key behind the row's own"),
    "mask": ("mask", "a key that the custom mask hides"),
    "bias": ("bias", "a key that the bias hides"),
    "head": ("head mapping", "a slot of another KV head"),
    "own": ("page", "a slot of the sequence"),
}


def leak_findings(lab: Lab) -> list[Finding]:
    """Return where the poison comes from that makes outputs NaN or Inf; empty where they stay so without poison."""
    bad = by_row(~np.isfinite(lab.first.actual) & np.isfinite(lab.first.bound))
    rows = [row for row in rows_of_case(lab.case) if bad[row.token, row.head]]
    if not rows:
        return []
    without = by_row(~np.isfinite(lab.run(lab.cleared()).actual))
    rows = [row for row in rows if not without[row.token, row.head]]
    if not rows:
        return []
    for question in (_from_values, _from_keys, _from_padding):
        found = question(lab, rows)
        if found is not None:
            return [found]
    return []


def _from_values(lab: Lab, rows: list[Row]) -> Finding | None:
    """Return the dead value that a row reads: a NaN in one column of each."""
    dead = _dead_cells(lab)
    width = lab.case.heads.head_size_v
    if len(dead) > MOST_LAUNCHES * width:
        dead = np.intersect1d(dead, lab.focus)
    tensors = without_scores(lab.cleared())
    for first in range(0, len(dead), width):
        cells = dead[first : first + width]
        lab.set_values(tensors, cells, np.arange(len(cells)), float("nan"))
        touched = np.isnan(lab.run(tensors).actual)
        for row in rows:
            columns = np.flatnonzero(touched[row.token, row.head, : len(cells)])
            if len(columns) == width:  # more than single values: the whole row is NaN
                return None
            if len(columns):
                return _finding(lab, row, cells[columns], "value", "multiplied by a weight of 0")
    return None


def _from_keys(lab: Lab, rows: list[Row]) -> Finding | None:
    """Return the dead key that makes a row's scores NaN, by halving the suspects."""
    suspects = _dead_cells(lab)
    row = _reached(lab, suspects, rows) if len(suspects) else None
    if row is None:
        return None
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        if _reached(lab, half, [row]) is None:
            half = suspects[len(suspects) // 2 :]
        suspects = half
    if _reached(lab, suspects, [row], last_column_only=True) is None:
        place = place_words((int(lab.cells.block[suspects[0]]), int(lab.cells.slot[suspects[0]])), lab.cells)
        words = (
            f"{row.words}, head {row.head}, reads columns of the key in {place}, a dead slot, as those of another key"
        )
        masked = "the head size is not masked, or " if any(map(is_padded, _parts_of_keys(lab.case))) else ""
        return Finding("address", f"{words}: {masked}a wrong stride or offset of K (poison)")
    found = _finding(lab, row, suspects, "key", "whose score is not masked")
    return msgspec.structs.replace(found, vague=row.position < 2)


def _parts_of_keys(case: AttentionCase) -> set[int]:
    """Return the sizes of which a kernel may load a block of a key: a head, its values, or the rest of it."""
    heads = case.heads
    return {heads.head_size, heads.head_size_v, abs(heads.head_size - heads.head_size_v)} - {0}


def _reached(lab: Lab, cells: Array, rows: list[Row], *, last_column_only: bool = False) -> Row | None:
    """Return the first row that is not finite with NaN in the keys of some cells."""
    tensors = lab.cleared()
    lab.set_keys(tensors, cells, float("nan"), last_column_only=last_column_only)
    finite = ~by_row(~np.isfinite(lab.run(tensors).actual))
    return next((row for row in rows if not finite[row.token, row.head]), None)


def _dead_cells(lab: Lab) -> Array:
    cells = lab.cells
    cached = np.flatnonzero(cells.block != PACKED)
    return cached[~lab.live[cells.block[cached], cells.slot[cached]]]


def _finding(lab: Lab, row: Row, of_row: Array, what: Literal["key", "value"], how: str) -> Finding:
    cell = int(of_row[0])
    kind = kind_of_cell(lab.cells, lab.case, row, cell)
    reason, where = _WHERE[kind]
    place = place_words((int(lab.cells.block[cell]), int(lab.cells.slot[cell])), lab.cells)
    owners = lab.cells.owners.get((int(lab.cells.block[cell]), int(lab.cells.slot[cell])), [])
    own = [owner.position for owner in owners if owner.sequence == row.sequence]
    name = f" ({keys(own)})" if own else ""
    poison = getattr(lab.case.poison, "values" if what == "value" else "keys").replace("_", " ")
    shown = {"nan": "NaN", "inf": "Inf", "negative inf": "-Inf"}.get(poison, poison)
    source = f"{shown} comes from {place}{name}, {where} (poison)"
    return Finding(reason, f"{source}: {row.words} reads its {what}{_lines(lab, cell, what)}, {how}")


def _lines(lab: Lab, cell: int, what: Literal["key", "value"]) -> str:
    """Return the lines that read a cell, in words; empty where they are not known."""
    lines = [site.rpartition("/")[2] for site in lab.lines_reading(cell, what)]
    return f" in {' and '.join(lines)}" if lines else ""


def _from_padding(lab: Lab, rows: list[Row]) -> Finding | None:
    """Return the memory beside the elements of a tensor without whose poison the rows are finite."""
    for reason, words, without in _regions(lab):
        tensors = lab.experiment.fresh()
        without(tensors)
        finite = ~by_row(~np.isfinite(lab.run(tensors).actual))
        if all(finite[row.token, row.head] for row in rows):
            return Finding(reason, f"{rows[0].words}, head {rows[0].head}: the NaN comes from {words} (poison)")
    return None


def _regions(lab: Lab) -> Iterator[tuple[Reason, str, Callable[[AttentionTensors], object]]]:
    """Yield parts of the memory that no kernel may read, and what clears each."""
    rows = lab.case.num_tokens
    yield "address", "memory between the rows of q or around them", partial(_clear_packed, name="query", rows=rows)
    yield "address", "memory between the keys or values of the caches", lab.clear_caches
    for name, words in (("new_keys", "keys"), ("new_values", "values")):
        yield "address", f"memory between the packed new {words}", partial(_clear_packed, name=name, rows=rows)
        yield "mask", f"new {words} that the mask hides from every row", partial(lab.clear_hidden, name=name)
    biases: tuple[tuple[Reason, str, str], ...] = (
        ("bias", "qq_bias", "memory outside of the query-query bias"),
        ("slope", "alibi_slopes", "memory outside of the slopes"),
        ("sink", "sinks", "memory outside of the sinks"),
    )
    for reason, name, words in biases:
        yield reason, words, partial(_clear_around, name=name)


def _clear_packed(tensors: AttentionTensors, name: str, rows: int) -> None:
    packed = getattr(tensors, name)
    if packed is not None:
        clear(tensors, packed, rows)


def _clear_around(tensors: AttentionTensors, name: str) -> None:
    tensor: torch.Tensor | None = getattr(tensors, name)
    if tensor is not None:
        kept = bits_of(tensor).clone()
        tensors.memory_of(tensor).zero_()
        distinct(bits_of(tensor)).copy_(distinct(kept, like=tensor))
