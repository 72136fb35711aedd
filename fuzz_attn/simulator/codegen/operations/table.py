"""Which function emits which operation of the IR: all that the simulator knows."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Handler
from fuzz_attn.simulator.codegen.operations import (
    assertions,
    casts,
    control_flow,
    floats,
    grid,
    inline_assembly,
    integers,
    loads_and_stores,
    shapes,
    tile_reductions,
)

_HANDLERS: dict[str, Handler] = {
    **floats.HANDLERS,
    **integers.HANDLERS,
    **casts.HANDLERS,
    **shapes.HANDLERS,
    **grid.HANDLERS,
    **tile_reductions.HANDLERS,
    **loads_and_stores.HANDLERS,
    **control_flow.HANDLERS,
    **assertions.HANDLERS,
    **inline_assembly.HANDLERS,
}

HANDLERS: dict[str, Handler] = {
    name: loads_and_stores.with_order(assertions.with_hints(handler)) for name, handler in _HANDLERS.items()
}
