"""Program ids, aranges and pointer arithmetic: from where a program is in the grid to where it accesses memory."""

from __future__ import annotations

from typing import Final

from fuzz_attn.simulator.codegen.access_plans import offset_of
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, track_exactly, track_result
from fuzz_attn.simulator.codegen.expressions import (
    NONE,
    NUMPY,
    RUN,
    Attribute,
    Binary,
    ListOf,
    call,
    constant,
    index,
    infix,
    method,
    numpy,
)
from fuzz_attn.simulator.codegen.statements import Assign
from fuzz_attn.simulator.codegen.terms import KnownRange, Term, Val, id_range
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.ttir.ir import Operation

_AXES: Final = {"x": 0, "y": 1, "z": 2}


def _program_id(emitter: Emitter, operation: Operation) -> None:
    axis = _AXES[operation.attributes.keyword]
    region = emitter.region
    while region.parent is not None and region.parent.scope is region.scope:
        region = region.parent
    name = emitter.fresh()
    emitter.add_to(region, Assign(name, method(RUN, "program_ids", region.scope.lanes, constant(axis))))
    emitter.define(operation.results[0], Term(name, (), True, region, "i32", range=id_range(axis)))


def _num_programs(emitter: Emitter, operation: Operation) -> None:
    axis = _AXES[operation.attributes.keyword]
    extent = ListOf((index(Attribute(RUN, "grid"), constant(axis)),))
    programs = numpy("array", extent, Attribute(NUMPY, "int32"))
    term = emitter.assign(lambda: programs, [], (), "i32", per_launch=True)
    track_exactly(emitter, term)
    emitter.define(operation.results[0], term)


def _make_range(emitter: Emitter, operation: Operation) -> None:
    attributes = operation.attributes
    if "end" not in attributes.named:
        raise emitter.unsupported("tt.make_range")
    start, end = attributes.integer("start"), attributes.integer("end")
    arange = numpy("arange", constant(start), constant(end), dtype=Attribute(NUMPY, "int32"))
    term = emitter.assign(lambda: index(arange, NONE), [], (end - start,), "i32", affine=True)
    term.range, term.start = KnownRange(start, end - 1), start
    emitter.define(operation.results[0], term)


def _add_pointer(emitter: Emitter, operation: Operation) -> None:
    pointer, offset = (emitter.val(operand) for operand in operation.operands)
    group = Val(offset.type, offset.terms, range=offset.range)
    groups = (*pointer.groups, group) if len(offset.terms) > 1 and offset.type.element == "i32" else pointer.groups
    terms = tuple(term for term in (*pointer.terms, *offset.terms) if term.literal != 0)
    emitter.define(operation.results[0], *terms, base=pointer.base, groups=groups).hints = pointer.hints + offset.hints


def _pointer_to_integer(emitter: Emitter, operation: Operation) -> None:
    """Emit the address in memory that a pointer has, as on a GPU: a kernel may test how it is aligned."""
    pointer, result = emitter.val(operation.operands[0]), operation.results[0]
    if pointer.base is None:
        raise emitter.unsupported(f"{operation.name} of a pointer that is not an argument plus an offset")
    outermost = [region for region in emitter.region.outwards() if region.scope is emitter.region.scope][-1]
    tensor = Term(pointer.base, (), False, outermost, "i64")
    address = emitter.assign(lambda memory: call("address_of", memory), [tensor], (), "i64")
    offset = offset_of(emitter, pointer)
    size = constant(STORAGE[pointer.type.element].itemsize)
    scaled = emitter.assign(lambda operand: Binary("*", operand, size), [offset], offset.shape, "i64")
    term = emitter.assign(infix("+"), [address, scaled], offset.shape, "i64")
    emitter.define(result, term)
    track_result(emitter, result)


HANDLERS: dict[str, Handler] = {
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.make_range": _make_range,
    "tt.addptr": _add_pointer,
    "tt.ptr_to_int": _pointer_to_integer,
}
