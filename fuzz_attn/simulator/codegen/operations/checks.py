"""Device assertions, and operations that change no value: barriers, prints, and waits for other launches."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.tree.expressions import RUN, constant, method
from fuzz_attn.simulator.codegen.tree.statements import Do
from fuzz_attn.ttir.ir import Operation


def _assert(emitter: Emitter, operation: Operation) -> None:
    condition = emitter.array(emitter.operand(operation, 0))
    message = constant(operation.attributes.string)
    emitter.add(Do(method(RUN, "device_assert", emitter.site(), emitter.lanes, emitter.read(condition), message)))


def _nothing(emitter: Emitter, operation: Operation) -> None:
    """Emit nothing."""


def _assembly(emitter: Emitter, operation: Operation) -> None:
    """Emit nothing for waits for other launches, which Triton before 3.9 writes in assembly."""
    if "griddepcontrol" not in operation.attributes.string:
        raise emitter.unsupported(operation.name)
    for result in operation.results:
        emitter.define(result, emitter.literal(0, result.type.shape, result.type.element))


HANDLERS: dict[str, Handler] = {
    "tt.assert": _assert,
    "tt.elementwise_inline_asm": _assembly,
    **dict.fromkeys(["tt.print", "ttg.barrier", "gpu.barrier", "tt.return"], _nothing),
    **dict.fromkeys(["tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"], _nothing),
}
