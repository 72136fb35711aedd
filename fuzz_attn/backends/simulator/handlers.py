"""Which function emits which operation of the IR: all that the simulator knows."""

from __future__ import annotations

from . import (
    emit_branches,
    emit_casts,
    emit_floats,
    emit_for,
    emit_integers,
    emit_masks,
    emit_memory,
    emit_reductions,
    emit_shapes,
    emit_sums,
    emit_while,
)
from .emitter import Handler

HANDLERS: dict[str, Handler] = {
    **emit_floats.HANDLERS,
    **emit_integers.HANDLERS,
    **emit_sums.HANDLERS,
    **emit_casts.HANDLERS,
    **emit_masks.HANDLERS,
    **emit_shapes.HANDLERS,
    **emit_reductions.HANDLERS,
    **emit_memory.HANDLERS,
    **emit_for.HANDLERS,
    **emit_while.HANDLERS,
    **emit_branches.HANDLERS,
}
