"""Which function emits which operation of the IR: all that the simulator knows."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Handler
from fuzz_attn.simulator.codegen.operations import (
    branches,
    casts,
    checks,
    dots,
    floats,
    for_loops,
    grid,
    hints,
    integers,
    masks,
    memory,
    order,
    reductions,
    shapes,
    sums,
    while_loops,
)

_HANDLERS: dict[str, Handler] = {
    **floats.HANDLERS,
    **integers.HANDLERS,
    **sums.HANDLERS,
    **casts.HANDLERS,
    **masks.HANDLERS,
    **shapes.HANDLERS,
    **grid.HANDLERS,
    **reductions.HANDLERS,
    **dots.HANDLERS,
    **memory.HANDLERS,
    **for_loops.HANDLERS,
    **while_loops.HANDLERS,
    **branches.HANDLERS,
    **checks.HANDLERS,
    **hints.HANDLERS,
}

HANDLERS: dict[str, Handler] = {
    name: order.with_order(hints.with_hints(handler)) for name, handler in _HANDLERS.items()
}
