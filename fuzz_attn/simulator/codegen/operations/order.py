"""Barriers, and the order of accesses within a program where a load may follow a store of other threads."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.accesses import Access, spread_offsets, whole_mask
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.tree.expressions import RUN, Attribute, constant, method
from fuzz_attn.simulator.codegen.tree.statements import Do
from fuzz_attn.ttir.ir import Operation


def with_order(handler: Handler) -> Handler:
    """Return the handler of an operation, which also emits a barrier where threads may meet at one."""

    def emit(emitter: Emitter, operation: Operation) -> None:
        exchanges = emitter.exchanges is not None and emitter.exchanges(operation)
        if exchanges:
            emit_barrier(emitter)
        handler(emitter, operation)
        if exchanges and operation.regions:
            emit_barrier(emitter)

    return emit


def emit_barrier(emitter: Emitter) -> None:
    """Emit a barrier of the programs of the current region."""
    emitter.add(Do(method(Attribute(RUN, "order"), "barrier", emitter.lanes)))


def order_access(emitter: Emitter, access: Access, name: str) -> None:
    """Emit the call that notes a store of a tile, or checks a load of one, before the access itself."""
    if emitter.exchanges is None or not access.rank:
        return
    offsets, mask = emitter.read(spread_offsets(emitter, access)), whole_mask(emitter, access)
    given = (RUN, access.memory, emitter.site(), emitter.lanes, offsets, mask, constant(access.sizes))
    emitter.add(Do(method(Attribute(RUN, "order"), name, *given)))
