"""Assembly in a kernel (`tl.inline_asm_elementwise`), as far as its instructions are known."""

from __future__ import annotations

from fuzz_attn.errors import UnknownInstructionError
from fuzz_attn.simulator.codegen.emitter import EVERY, Emitter, Handler, full, track_result
from fuzz_attn.simulator.codegen.expressions import Expression, call, constant, index
from fuzz_attn.simulator.codegen.statements import Assign
from fuzz_attn.simulator.codegen.terms import Term
from fuzz_attn.simulator.runtime.ptx import assembly_of, check
from fuzz_attn.ttir.ir import Operation


def _assembly(emitter: Emitter, operation: Operation) -> None:
    named = operation.attributes.named
    what = (operation.attributes.string, named["constraints"], operation.attributes.integer("packed_element", 1))
    elements = [value.type.element for value in operation.operands]
    wanted = [value.type.element for value in operation.results]
    try:
        assembly = assembly_of(*what)
        check(assembly, elements, wanted)
    except UnknownInstructionError as error:
        raise emitter.unsupported(f"{operation.name} of {error}") from None
    operands = [full(emitter, operation, place) for place in range(len(elements))]
    program = call("assembly_of", *map(constant, what))
    given = (program, constant(tuple(elements)), constant(tuple(wanted)))
    varying = assembly.varies or any(term.varying for term in operands)
    together = emitter.fresh()
    lanes = emitter.lanes if varying else EVERY
    arrays = [emitter.read(term) for term in operands]
    emitter.add(Assign(together, call("assembled", *given, lanes, *arrays), effect=assembly.varies))
    pinned = Term(together, (), varying, emitter.region, "i32")
    for place, result in enumerate(operation.results):

        def build(results: Expression, place: int = place) -> Expression:
            return index(results, constant(place))

        term = emitter.assign(build, [pinned], result.type.shape, result.type.element)
        emitter.define(result, term)
        track_result(emitter, result)


HANDLERS: dict[str, Handler] = {"tt.elementwise_inline_asm": _assembly}
