"""Atomic operations, in the order of the programs' numbers and of the elements within a tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.findings import FindingKind, Reporter
from fuzz_attn.simulator.runtime.float_formats import bitcast, from_bits, round_to, to_storage
from fuzz_attn.simulator.runtime.memory import Memory
from fuzz_attn.simulator.sanitizers.accesses import check_written, discard_outside

Array = npt.NDArray[Any]

_UPDATES: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda old, new: old + new,
    "fadd": lambda old, new: old + new,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "max": np.maximum,
    "min": np.minimum,
    "umax": lambda old, new: np.maximum(_unsigned(old), _unsigned(new)).view(old.dtype),
    "umin": lambda old, new: np.minimum(_unsigned(old), _unsigned(new)).view(old.dtype),
    "exch": lambda old, new: new,
}


def _unsigned(values: Array) -> Array:
    return values.view(f"u{values.itemsize}")


def atomic(
    run: Reporter,
    memory: Memory,
    kind: str,
    element: str,
    site: int,
    lanes: Array,
    offsets: Array,
    mask: Array | None,
    *values: Array,
) -> Array:
    """Update the elements at `offsets`, read as `element`, by `kind`; return the old ones, 0 where masked."""
    shape = np.broadcast_shapes(offsets.shape, (lanes.size,) + (1,) * (offsets.ndim - 1))
    offsets = np.broadcast_to(offsets, shape)
    active = np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)
    if memory.layout.empty or not memory.layout.inside(offsets)[active].all():
        kind = FindingKind.OUT_OF_BOUNDS_STORE
        _, active = discard_outside(memory, run, kind, site, lanes, offsets, active)
    order = np.argsort(lanes, kind="stable")
    chosen = active[order]
    positions = offsets[order][chosen]
    operands = [np.broadcast_to(value, shape)[order][chosen] for value in values]
    if memory.written is not None and not memory.written[positions].all():
        everywhere = np.where(active, offsets, 0)[order]
        check_written(memory, run, site, lanes[order], everywhere, chosen)
    old = _apply(memory, kind, element, positions, operands)
    if memory.written is not None:
        memory.written[positions] = True
    result = np.zeros(shape, old.dtype)
    ordered = np.zeros(shape, old.dtype)
    ordered[chosen] = old
    result[order] = ordered
    return result


def _apply(memory: Memory, kind: str, element: str, positions: Array, operands: list[Array]) -> Array:
    """Update the elements and return the old ones; at once where all positions differ, one by one otherwise."""
    if np.unique(positions).size == positions.size:
        return _update(memory, kind, element, positions, operands)
    pieces = [
        _update(memory, kind, element, positions[i : i + 1], [operand[i : i + 1] for operand in operands])
        for i in range(positions.size)
    ]
    return np.concatenate(pieces)


def _update(memory: Memory, kind: str, element: str, positions: Array, operands: list[Array]) -> Array:
    stored = from_bits(memory.flat[positions], memory.element)
    old = stored if element == memory.element else bitcast(stored, memory.element, element)
    new = np.where(old == operands[0], operands[1], old) if kind == "cas" else _UPDATES[kind](old, operands[0])
    if old.dtype.kind == "f":
        new = round_to(new, element)
    new = new.astype(old.dtype, copy=False)
    back = new if element == memory.element else bitcast(new, element, memory.element)
    memory.flat[positions] = to_storage(np.ascontiguousarray(back), memory.element)
    return old
