"""Device assertions, and operations that change no value: barriers, prints and compiler hints."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.tree.expressions import RUN, constant, method
from fuzz_attn.simulator.codegen.tree.statements import Do
from fuzz_attn.simulator.frontend.ir import Operation


def _assert(emitter: Emitter, operation: Operation) -> None:
    condition = emitter.array(emitter.operand(operation, 0))
    message = constant(operation.attributes.string)
    emitter.add(Do(method(RUN, "device_assert", emitter.site(), emitter.lanes, emitter.read(condition), message)))


def _nothing(emitter: Emitter, operation: Operation) -> None:
    """Emit nothing."""


HANDLERS: dict[str, Handler] = {
    "tt.assert": _assert,
    **dict.fromkeys(["tt.print", "ttg.barrier", "gpu.barrier", "tt.return", "llvm.intr.assume"], _nothing),
}
