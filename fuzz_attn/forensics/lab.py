"""Lab: launches the target on changed tensors of one case, and compares each output with the oracle.

A cell is every place that holds one value vector of one KV head.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import is_fp8
from fuzz_attn.case.recipes import CAUSAL, PoisonRecipe
from fuzz_attn.errors import ProbeError, UnsupportedByBackendError
from fuzz_attn.forensics.explanation import rows_of_case
from fuzz_attn.inputs.batch_rows import PageMap, page_map
from fuzz_attn.inputs.storage import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors, outputs_of
from fuzz_attn.oracle.reference import Expected, attend
from fuzz_attn.properties.experiment import Experiment

Array: TypeAlias = np.typing.NDArray[Any]

PACKED: Final = -1
"""The block of a cell in the packed new keys and values; its slot is the row there."""


def by_row(of_elements: Array) -> Array:
    """Return whether any element of the last axis is true."""
    rows: Array = np.asarray(of_elements.any(axis=-1))
    return rows


class Owner(NamedTuple):
    """A key that lies in a cell. ``held`` is false for a slot whose contents no kernel may use."""

    sequence: int
    position: int
    held: bool


@dataclass(frozen=True)
class Cells:
    """The cells of a case: ``block``, ``slot`` and ``head``, int64 ``[num_cells]`` each.

    Blocks count from the first page that has memory.
    """

    case: AttentionCase
    pages: PageMap
    block: Array
    slot: Array
    head: Array

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def packed_rows(self) -> list[int | None]:
        """For each sequence, the row of its first new token where these are read packed, and else None."""
        starts = accumulate((sequence.query_len for sequence in self.case.sequences), initial=0)
        return [start if packed else None for packed, start in zip(self.case.reads_packed, starts, strict=False)]

    @cached_property
    def owners(self) -> dict[tuple[int, int], list[Owner]]:
        """The keys that lie at a (block, slot), those that may be used first."""
        found: dict[tuple[int, int], list[Owner]] = {}
        size = self.case.pages.block_size
        for index, (sequence, row) in enumerate(zip(self.case.sequences, self.packed_rows, strict=True)):
            packed_from = sequence.seq_len if row is None else sequence.context_len
            for position in range(-(-sequence.seq_len // size) * size):
                block = int(self.pages.block_table[index, position // size]) - self.pages.first_block
                owner = Owner(index, position, position < packed_from)
                found.setdefault((block, position % size), []).append(owner)
            for position in range(packed_from, sequence.seq_len):
                new = (row or 0) + position - sequence.context_len
                found.setdefault((PACKED, new), []).append(Owner(index, position, True))
        for owners in found.values():
            owners.sort(key=lambda owner: not owner.held)
        return found

    @cached_property
    def numbers(self) -> dict[tuple[int, int, int], int]:
        """The number of each cell by (block, slot, head)."""
        places = zip(self.block.tolist(), self.slot.tolist(), self.head.tolist(), strict=True)
        return {place: number for number, place in enumerate(places)}

    def of_key(self, sequence: int, position: int) -> tuple[int, int]:
        """Return (block, slot) of a key that the sequence may use."""
        size, row = self.case.pages.block_size, self.packed_rows[sequence]
        context_len = self.case.sequences[sequence].context_len
        if row is not None and position >= context_len:
            return PACKED, row + position - context_len
        return int(self.pages.block_table[sequence, position // size]) - self.pages.first_block, position % size

    def keys_of(self, sequence: int, head: int) -> Array:
        """Return the number of the cell of each key of a sequence, for one KV head."""
        length = self.case.sequences[sequence].seq_len
        places = (self.of_key(sequence, position) for position in range(length))
        return np.array([self.numbers[(*place, head)] for place in places], dtype=np.int64)

    def tail_of(self, sequence: int, head: int) -> Array:
        """Return the numbers of the cells of a sequence's last page behind its end; none where the end is packed."""
        length = self.case.sequences[sequence].seq_len
        block, last = self.of_key(sequence, length - 1) if length else (PACKED, 0)
        slots = range(last + 1, self.case.pages.block_size if block != PACKED else 0)
        return np.array([self.numbers[block, slot, head] for slot in slots], dtype=np.int64)


def cells_of(case: AttentionCase, tensors: AttentionTensors) -> Cells:
    """Return all cells of a case: those of the caches, then those of the packed values."""
    pages, heads = page_map(case), tensors.num_kv_heads
    blocks = pages.num_blocks - pages.first_block
    grids = [np.indices((blocks, case.pages.block_size, heads)).reshape(3, -1)]
    if tensors.new_values is not None:
        packed = np.indices((1, case.num_tokens, heads)).reshape(3, -1)
        packed[0] = PACKED
        grids.append(packed)
    block, slot, head = np.concatenate(grids, axis=1)
    return Cells(case, pages, block, slot, head)


SECONDS: Final = 4.0
"""Processor time of an explanation, after which no further launch is made."""
NO_SINK: Final = -1000.0
FAR: Final = 0.03
"""Share of a number beyond which an error is no rounding."""


def beyond(actual: Array, expected: Array, allowed: Array) -> Array:
    """Return bool of the same shape: whether an element is off by more than it may be, or not finite."""
    wrong: Array = ~(np.abs(actual - expected) <= allowed)
    return wrong


@dataclass(frozen=True)
class Probed:
    """Attention's output of a launch and the oracle's answer, float64 ``[num_tokens, num_query_heads, head_size]``."""

    actual: Array
    expected: Array
    bound: Array

    @cached_property
    def wrong(self) -> Array:
        """Bool of the same shape: whether an element is beyond its bound or not finite."""
        return beyond(self.actual, self.expected, self.bound) & np.isfinite(self.bound)

    @cached_property
    def far(self) -> Array:
        """Bool of the same shape: whether an element is wrong by more than a rounding could make it."""
        return self.wrong & beyond(self.actual, self.expected, FAR * np.abs(self.expected))


class Lab:
    """Launches of one failing case with other numbers in it; none begins after the processor time ``until``."""

    def __init__(self, experiment: Experiment, until: float) -> None:
        self.experiment = experiment
        self.case = experiment.case
        self.launches = 0
        self._until = until

    @cached_property
    def cells(self) -> Cells:
        """The places that values can be read from."""
        return cells_of(self.case, self.experiment.fresh())

    @cached_property
    def live(self) -> Array:
        """Bool ``[num_blocks, block_size]`` of the pages that have memory: whether the slot holds a key."""
        pages, size = self.cells.pages, self.case.pages.block_size
        live = np.zeros((pages.num_blocks - pages.first_block) * size, dtype=np.bool_)
        live[pages.slots[pages.held] - pages.first_block * size] = True
        return live.reshape(-1, size)

    def cleared(self) -> AttentionTensors:
        """Return tensors of the case with 0 in place of all poison that a kernel could read, its table excepted.

        The scales of v and of the output are 1.
        """
        tensors = self.experiment.fresh()
        self.clear_caches(tensors)
        for packed in (tensors.query, tensors.new_keys, tensors.new_values):
            if packed is not None:
                clear(tensors, packed, self.case.num_tokens)
        for name in ("new_keys", "new_values"):
            self.clear_hidden(tensors, name)
        for scale in (tensors.v_scale, tensors.out_scale):
            if scale is not None:
                scale.fill_(1.0)
        return tensors

    def clear_caches(self, tensors: AttentionTensors) -> None:
        """Set everything in the memory of both caches to 0 but the keys and values that some row may use."""
        near, live = tensors.near(), torch.from_numpy(self.live).to(tensors.query.device)
        views = bits_of(near.key_slots), bits_of(near.value_slots)
        kept = [view[live].clone() for view in views]
        for cache in (tensors.key_cache, tensors.value_cache):
            tensors.memory_of(cache).zero_()
        for view, numbers in zip(views, kept, strict=True):
            view[live] = numbers

    def clear_hidden(self, tensors: AttentionTensors, name: str) -> None:
        """Set the packed keys or values to 0 that no row may see."""
        packed = getattr(tensors, name)
        if packed is not None and self.case.mask != CAUSAL:
            starts = accumulate(tensors.query_lens, initial=0)
            for index, (start, context_len) in enumerate(zip(starts, tensors.context_lens, strict=False)):
                new = np.flatnonzero(~tensors.needed_keys(index)[context_len:])
                bits_of(packed)[torch.from_numpy(start + new)] = 0

    def run(self, tensors: AttentionTensors) -> Probed:
        """Return the target's output on tensors, which it must leave as they are, and the oracle's.

        Raises :class:`ProbeError` where the launch fails, or the time is up.
        """
        if time.process_time() > self._until:
            raise ProbeError("the time for more launches was up")
        tensors = dataclasses.replace(tensors, outputs=outputs_of(self.case, self.experiment.place))
        try:
            launch = self.experiment.launch_tensors(tensors)
        except UnsupportedByBackendError as error:
            raise ProbeError(f"a launch with other numbers cannot run: {error}") from error
        self.launches += 1
        if launch.error:
            raise ProbeError(f"a launch with other numbers {launch.error}")
        reference = attend(launch.tensors, self.experiment.target.rounding_model)
        return self._probed(launch.tensors, reference["out"])

    def lines_reading(self, cell: int, what: Literal["key", "value"]) -> tuple[str, ...]:
        """Return each ``file:line`` that loads the key or value in a cell of the caches, if the backend sees loads."""
        if not self.experiment.backend.sanitizers or self.cells.block[cell] == PACKED:
            return ()
        tensors = self.cleared()
        slots = tensors.near().key_slots if what == "key" else tensors.near().value_slots
        dead = slots[int(self.cells.block[cell]), int(self.cells.slot[cell]), int(self.cells.head[cell])]
        launch = self.experiment.launch_tensors(tensors, dead)
        self.launches += 1
        known = {each.site for each in self.experiment.first.observations if each.kind == "uninitialised"}
        sites = [each.site for each in launch.observations if each.kind == "uninitialised" and each.site not in known]
        return tuple(dict.fromkeys(filter(None, sites)))

    @cached_property
    def first(self) -> Probed:
        """The attention output of the case itself."""
        return self._probed(self.experiment.first.tensors, self.experiment.reference["out"])

    def _probed(self, tensors: AttentionTensors, expected: Expected) -> Probed:
        """Return the rows that are written at all; the bound of the others is infinite."""
        actual = tensors.outputs["out"].elements.double()
        probed = Probed(*(part.cpu().numpy() for part in (actual, expected.value, expected.bound.clone())))
        probed.bound[self.unwritten] = np.inf
        return probed

    @cached_property
    def focus(self) -> Array:
        """The cells of the first wrong row: its keys and the slots behind them, where all cells are too many."""
        wrong = by_row(self.first.wrong)
        rows = rows_of_case(self.case)
        row = next((row for row in rows if wrong[row.token, row.head]), rows[0])
        own = self.cells.keys_of(row.sequence, row.kv_head)
        return np.unique(np.concatenate([own, self.cells.tail_of(row.sequence, row.kv_head)]))

    @cached_property
    def unwritten(self) -> Array:
        """Bool ``[num_tokens, num_query_heads]``: whether the case's own launch leaves all of a row unwritten."""
        rows: Array = np.asarray(self.untouched["out"].all(axis=-1))
        return rows

    @cached_property
    def untouched(self) -> dict[str, Array]:
        """For each output, bool of the shape of its elements: whether an element still holds the output's poison.

        In fp8 a NaN has the same bits, so there a second launch with other poison must leave its own poison too.
        """
        untouched = _untouched(self.experiment.first.tensors)
        if not is_fp8(self.case.dtypes.out) or not any(each.any() for each in untouched.values()):
            return untouched
        poison: PoisonRecipe = msgspec.structs.replace(self.case.poison, out=1 - self.case.poison.out)
        again = self.experiment.launch(replace(self.case, poison=poison))
        if again.error:
            return untouched
        others = _untouched(again.tensors)
        return {name: each & others[name] for name, each in untouched.items()}

    def set_values(self, tensors: AttentionTensors, cells: Array, columns: Array, number: float) -> None:
        """Set every value to 0, and one column of each of some cells to a number; poison goes."""
        view, packed = bits_of(tensors.near().value_slots), tensors.new_values
        view.zero_()
        cached = self.cells.block[cells] != PACKED
        block, slot, head = self._places(cells[cached])
        view[block, slot, head, torch.from_numpy(columns[cached])] = int(number_bits(number, tensors.kv_dtype))
        if packed is not None:
            bits_of(packed)[: self.case.num_tokens] = 0
            _, row, head = self._places(cells[~cached])
            bits_of(packed)[row, head, torch.from_numpy(columns[~cached])] = int(number_bits(number, packed.dtype))

    def _places(self, cells: Array) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return block, slot and head of some cells as indices."""
        block, slot, head = (array[cells] for array in (self.cells.block, self.cells.slot, self.cells.head))
        return torch.from_numpy(block), torch.from_numpy(slot), torch.from_numpy(head)

    def set_all_values(self, tensors: AttentionTensors, columns: Array) -> None:
        """Set every value to the same numbers, one for each column."""
        for view, dtype in self._all(tensors, "value"):
            bits = torch.stack([number_bits(float(number), dtype) for number in columns])
            view.copy_(bits.expand_as(view))

    def clear_values(self, tensors: AttentionTensors, cells: Array) -> None:
        """Set the values of some cells to 0."""
        cached = self.cells.block[cells] != PACKED
        bits_of(tensors.near().value_slots)[self._places(cells[cached])] = 0
        if tensors.new_values is not None:
            _, row, head = self._places(cells[~cached])
            bits_of(tensors.new_values)[row, head] = 0

    def fill_memory(self, tensors: AttentionTensors, number: float) -> None:
        """Set the whole memory of the values to a number, also between and around them, and that of the keys."""
        bits = int(number_bits(number, tensors.kv_dtype))
        for cache in (tensors.key_cache, tensors.value_cache):
            bits_of(tensors.memory_of(cache).view(tensors.kv_dtype)).fill_(bits)
        if tensors.new_values is not None:
            dtype = tensors.new_values.dtype
            bits_of(tensors.memory_of(tensors.new_values).view(dtype)).fill_(int(number_bits(number, dtype)))

    def set_all_keys(self, tensors: AttentionTensors, numbers: Array) -> None:
        """Set the key of each cell to a number in all its columns, or to its own numbers ``[num_cells, head_size]``."""
        count, size = len(self.cells), self.case.heads.head_size
        rows = np.broadcast_to(numbers.reshape(count, -1), (count, size)).astype(np.float32)
        cached, packed = np.flatnonzero(self.cells.block != PACKED), np.flatnonzero(self.cells.block == PACKED)
        view = bits_of(tensors.near().key_slots)
        bits = bits_of(torch.from_numpy(rows[cached]).to(tensors.kv_dtype)).to(view.device)
        view[self._places(cached)] = bits.view(len(cached), *view.shape[3:])
        if tensors.new_keys is not None:
            _, row, head = self._places(packed)
            bits = bits_of(torch.from_numpy(rows[packed]).to(tensors.new_keys.dtype)).to(view.device)
            bits_of(tensors.new_keys)[row, head] = bits

    def _all(self, tensors: AttentionTensors, what: str) -> list[tuple[torch.Tensor, torch.dtype]]:
        """Return the cached and the packed keys or values as bits, with their types."""
        views = [(bits_of(getattr(tensors.near(), f"{what}_slots")), tensors.kv_dtype)]
        packed = getattr(tensors, f"new_{what}s")
        return views if packed is None else [*views, (bits_of(packed)[: self.case.num_tokens], packed.dtype)]

    def set_keys(
        self, tensors: AttentionTensors, cells: Array, number: float, *, last_column_only: bool = False
    ) -> None:
        """Set all elements, or only the last one, of the keys of some cells of the caches to a number."""
        view, bits = bits_of(tensors.near().key_slots), int(number_bits(number, tensors.kv_dtype))
        if last_column_only:
            block, slot, head = self._places(cells)
            last = (-1,) if view.dim() == 4 else (-1, -1)
            view[block, slot, head, *last] = bits
        else:
            view[self._places(cells)] = bits


def _untouched(tensors: AttentionTensors) -> dict[str, Array]:
    return {name: output.unwritten.cpu().numpy() for name, output in tensors.outputs.items()}


def number_bits(number: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the bits of a number in a type."""
    return bits_of(torch.tensor([number], dtype=torch.float32).to(dtype))[0]


def clear(tensors: AttentionTensors, packed: torch.Tensor, rows: int) -> None:
    """Set the memory of packed tokens to 0, its first rows excepted."""
    view = bits_of(packed)[:rows]
    kept = view.clone()
    tensors.memory_of(packed).zero_()
    view.copy_(kept)


def without_scores(tensors: AttentionTensors) -> AttentionTensors:
    """Return the tensors with all scores 0: no query, no slope, no finite bias; and sinks that weigh nothing."""
    bits_of(tensors.query).zero_()
    for scale in (tensors.q_scale, tensors.k_scale):
        if scale is not None:
            scale.fill_(1.0)
    if tensors.alibi_slopes is not None:
        tensors.alibi_slopes.zero_()
    if tensors.qq_bias is not None:
        own = distinct(tensors.qq_bias)
        own.masked_fill_(own.isfinite(), 0.0)
    return without_sinks(tensors)


def without_sinks(tensors: AttentionTensors) -> AttentionTensors:
    """Return the tensors with sinks that weigh nothing."""
    if tensors.sinks is not None:
        tensors.sinks.fill_(NO_SINK)
    return tensors


def distinct(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return the elements of a tensor that have memory of their own: an expanded dimension once."""
    strides = (tensor if like is None else like).stride()
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
