"""Memory operations: loads, stores and atomics; program ids, aranges and pointers, which say where they access memory.

Also the order of a load and an earlier store of other threads, with the barriers between them.

The IR names one barrier only, `tl.debug_barrier`; the compiler adds others where threads exchange values. So all that
may make it exchange some counts as a barrier, and only the rest is certain: values made of aranges, program ids and
scalars are computed by each thread that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fuzz_attn.simulator.codegen.access_plans import (
    Access,
    Rows,
    access_of,
    apart_axes,
    check_overflow,
    column_axes,
    full_offsets,
    lane_arguments,
    moved,
    offset_of,
    plan_columns,
    plan_rows,
    spread_offsets,
    whole_mask,
)
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, track_exactly, track_result
from fuzz_attn.simulator.codegen.source_tree import (
    NONE,
    NUMPY,
    RUN,
    Assign,
    Attribute,
    Binary,
    Conditional,
    Do,
    Expression,
    Group,
    If,
    ListOf,
    Name,
    Statement,
    all_of,
    call,
    constant,
    index,
    infix,
    item,
    method,
    numpy,
)
from fuzz_attn.simulator.codegen.terms import KnownRange, Term, Val, arm_of, broadcast_shape, id_range
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.ttir.ir import Block, Function, Operation, Value
from fuzz_attn.ttir.value_graph import walk

_LOCAL: Final = frozenset(
    [
        *("tt.splat", "tt.make_range", "tt.expand_dims", "tt.broadcast", "tt.addptr", "tt.bitcast"),
        *("tt.fp_to_fp", "tt.get_program_id", "tt.get_num_programs"),
    ]
)
_LOOPS: Final = frozenset({"scf.for", "scf.while"})
_SILENT: Final = frozenset({"tt.return", "scf.yield", "scf.condition", "llvm.intr.assume", "cf.br", "cf.cond_br"})


class _Ordering:
    """The operations of a kernel in which a load may follow a store."""

    def __init__(self, function: Function) -> None:
        self._makers = {result: operation for operation in walk(function.blocks) for result in operation.results}
        self._anywhere: dict[Value, bool] = {}

    def may_exchange(self, operation: Operation) -> bool:
        """Return whether threads may meet at a barrier in an operation, apart from those in its regions."""
        name = operation.name
        if name in _SILENT:
            return False
        if name == "tt.load":
            return not all(map(self._is_anywhere, operation.operands))
        if operation.regions and not name.startswith("tt."):  # control flow
            return any(value.type.shape for value in (*operation.results, *operation.operands))
        if not _is_local(operation):
            return True
        if all(map(self._is_anywhere, operation.results)):
            return False
        # Tiles that were loaded in different layouts are brought into one.
        tiles = [value for value in operation.operands if not self._is_anywhere(value)]
        return name == "tt.expand_dims" or len(tiles) > 1

    def _is_anywhere(self, value: Value) -> bool:
        """Return whether each thread can compute the elements of a value that it needs."""
        if not value.type.shape:
            return True
        known = self._anywhere.get(value)
        if known is None:
            maker = self._makers.get(value)
            known = self._anywhere[value] = (
                maker is not None and _is_local(maker) and all(map(self._is_anywhere, maker.operands))
            )
        return known


def _is_local(operation: Operation) -> bool:
    """Return whether each thread makes its elements of the result from its elements of the operands."""
    return operation.name in _LOCAL or operation.name.startswith(("arith.", "math."))


def exchanges_of(function: Function) -> Callable[[Operation], bool] | None:
    """Return which operations may be barriers, for a kernel in which some load of a tile may follow a store of one."""
    _, found = _after_store(function.blocks, stored=False)
    return _Ordering(function).may_exchange if found else None


def _after_store(blocks: Iterable[Block], *, stored: bool) -> tuple[bool, bool]:
    """Return whether a tile was stored before or within blocks, and whether one is loaded afterwards."""
    found = False
    for operation in (operation for block in blocks for operation in block.operations):
        if operation.name == "tt.store" and operation.operands[0].type.shape:
            stored = True
        elif operation.name == "tt.load" and operation.operands[0].type.shape:
            found |= stored
        for _ in range(2 if operation.name in _LOOPS else 1):  # a loop's second iteration follows its first
            for region in operation.regions:
                stored, inner = _after_store(region, stored=stored)
                found |= inner
    return stored, found


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


def _by_form(
    emitter: Emitter,
    access: Access,
    axes: list[tuple[int, Term]],
    by_rows: Callable[[int, Rows], Statement],
    general: Callable[[], None],
) -> None:
    """Emit the access by rows along the first axis with consecutive columns, or else in the general way."""
    if not axes:
        general()
        return
    axis, column = axes[0]
    plan = plan_rows(emitter, access, axis, column)
    statement = by_rows(axis, plan)
    if not plan.tests:
        emitter.add(statement)
        return
    other = _apart(emitter, lambda: _by_form(emitter, access, axes[1:], by_rows, general))
    emitter.add(If(all_of(plan.tests), [statement], other))


def _apart(emitter: Emitter, emit: Callable[[], None]) -> list[Statement]:
    """Return statements that only run under a condition."""
    with emitter.inside(arm_of(emitter.region)) as inner:
        emit()
    return inner.statements


@dataclass(slots=True)
class _Load:
    """A load while it is emitted: `other` is what masked elements are read as, `name` the variable of the result."""

    emitter: Emitter
    access: Access
    other: Term | None
    name: Name
    first: tuple[Expression, ...]

    @property
    def splits(self) -> bool:
        """Whether the load can be one of rows: masked elements are all read as the same number."""
        return self.other is None or self.other.bare

    def filler(self) -> Expression:
        """Return the number that masked elements are read as."""
        if self.other is None:
            return NONE
        read = self.emitter.read(self.other)
        return read if self.other.literal is not None else item(read)

    def by_rows(self, axis: int, plan: Rows) -> Statement:
        """Return the load of whole rows."""
        given = (*self.first, plan.starts, plan.width, constant(self.access.sizes[axis]), plan.mask, self.filler())
        rows = method(self.access.memory, "load_rows", *given)
        return Assign(self.name, moved(rows, axis, self.access.rank), effect=True)

    def by_columns(self) -> None:
        """Emit the load of rows whose columns lie apart, or element by element where they have another form."""
        emitter, access = self.emitter, self.access
        axes = apart_axes(access) if self.splits else []
        if not axes:
            self.by_elements()
            return
        axis, column = axes[0]
        columns, plan = plan_columns(emitter, access, axis, column)
        given = (plan.starts, columns, plan.width, constant(access.sizes[axis]), plan.mask, self.filler())
        rows: Expression = method(access.memory, "load_columns", *given)
        if plan.tests:
            rows = Conditional(rows, all_of(plan.tests), NONE)
        emitter.add(Assign(self.name, rows))
        general = _apart(emitter, self.by_elements)
        in_place = moved(self.name, axis, access.rank)
        # A dot product rounds by the order of its operands in memory.
        ordered: list[Statement] = [Assign(self.name, numpy("ascontiguousarray", in_place))]
        emitter.add(If(Binary("is", self.name, NONE), general, [] if in_place is self.name else ordered))

    def by_elements(self) -> None:
        """Emit the load element by element."""
        emitter, access, other = self.emitter, self.access, self.other
        offsets = emitter.read(full_offsets(emitter, access))
        if other is not None and not other.bare:
            shape = Group((emitter.row_count(access.varying), *map(constant, access.shape)))
            offsets = numpy("broadcast_to", offsets, shape)
        filler = NONE if other is None else emitter.read(other)
        load = method(access.memory, "load", *self.first, offsets, whole_mask(emitter, access), filler)
        emitter.add(Assign(self.name, load, effect=True))


def _check_element(emitter: Emitter, operation: Operation, memory: Name) -> None:
    """Raise UnsupportedOperation for a pointer to another type than its tensor's; atomics take the bits as they are."""
    element, own = operation.operands[0].type.element, emitter.elements[memory]
    if element != own and {element, own} != {"i1", "i8"}:
        raise emitter.unsupported(f"{operation.name} of {element} through a pointer to {own}")


def _load(emitter: Emitter, operation: Operation) -> None:
    access = access_of(emitter, operation, 1)
    _check_element(emitter, operation, access.memory)
    result = operation.results[0]
    other = emitter.operand(operation, 2) if len(operation.operands) > 2 and access.mask is not None else None
    if other is not None:
        access.shape = broadcast_shape((access.shape, other.shape), access.rank)
        access.varying = access.varying or other.varying
    check_overflow(emitter, access)
    order_access(emitter, access, "load")
    load = _Load(emitter, access, other, emitter.fresh(), lane_arguments(emitter))
    _by_form(emitter, access, column_axes(access) if load.splits else [], load.by_rows, load.by_columns)
    emitter.define(result, Term(load.name, access.shape, access.varying, emitter.region, result.type.element))
    track_result(emitter, result)


def _store(emitter: Emitter, operation: Operation) -> None:
    access = access_of(emitter, operation, 2)
    _check_element(emitter, operation, access.memory)
    values = emitter.operand(operation, 1)
    last: tuple[Expression, ...] = ()
    if values.unrounded is not None:  # only what is stored is rounded then
        values, last = values.unrounded, (constant(True),)
    check_overflow(emitter, access)
    order_access(emitter, access, "store")
    first = lane_arguments(emitter)

    def by_rows(axis: int, plan: Rows) -> Statement:
        shape = (*values.shape[:axis], access.sizes[axis], *values.shape[axis + 1 :])
        ranked = emitter.ranked(values)
        array = emitter.read(ranked)
        if ranked.shape != shape:
            array = call("spread", array, constant(shape))
        array = moved(array, axis, access.rank, inverse=True)
        return Do(method(access.memory, "store_rows", *first, plan.starts, plan.width, array, plan.mask, *last))

    def by_elements() -> None:
        offsets = emitter.read(spread_offsets(emitter, access))
        array = emitter.read(values if values.literal is not None else emitter.ranked(values))
        mask = whole_mask(emitter, access)
        emitter.add(Do(method(access.memory, "store", *first, offsets, array, mask, *last)))

    _by_form(emitter, access, column_axes(access), by_rows, by_elements)


_ATOMIC_VALUES: Final = {"tt.atomic_load": 0, "tt.atomic_store": 1, "tt.atomic_rmw": 1, "tt.atomic_cas": 2}
"""How many values stand between the address of an atomic and its mask."""


def _atomic(emitter: Emitter, operation: Operation) -> None:
    count = _ATOMIC_VALUES[operation.name]
    access = access_of(emitter, operation, 1 + count)
    check_overflow(emitter, access)
    kind = operation.name.removeprefix("tt.atomic_")
    kind = operation.attributes.keyword if kind == "rmw" else kind
    _, site, lanes = lane_arguments(emitter)
    offsets = emitter.read(spread_offsets(emitter, access))
    operands = [emitter.operand(operation, 1 + index) for index in range(count)]
    values = [emitter.read(emitter.ranked(operand)) for operand in operands]
    mask = whole_mask(emitter, access)
    element = operation.operands[0].type.element
    what = (RUN, access.memory, constant(kind), constant(element), site, lanes, offsets, mask, *values)
    _define_atomic(emitter, operation, access, call("atomic", *what))


def _poll(emitter: Emitter, operation: Operation) -> None:
    access = access_of(emitter, operation, len(operation.operands))
    check_overflow(emitter, access)
    _, site, lanes = lane_arguments(emitter)
    offsets = emitter.read(spread_offsets(emitter, access))
    expected = emitter.read(emitter.ranked(emitter.operand(operation, 1)))
    limited = constant("timeout" in operation.text)
    element = constant(operation.operands[0].type.element)
    polled = call("poll", RUN, access.memory, element, site, lanes, offsets, expected, limited)
    _define_atomic(emitter, operation, access, polled)


def _define_atomic(emitter: Emitter, operation: Operation, access: Access, made: Expression) -> None:
    name = emitter.fresh()
    emitter.add(Assign(name, made, effect=True))
    for result in operation.results:
        emitter.define(result, Term(name, access.sizes, True, emitter.region, result.type.element))
        track_result(emitter, result)


HANDLERS: dict[str, Handler] = {
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.make_range": _make_range,
    "tt.addptr": _add_pointer,
    "tt.ptr_to_int": _pointer_to_integer,
    "tt.load": _load,
    "tt.store": _store,
    **dict.fromkeys(_ATOMIC_VALUES, _atomic),
    "tt.atomic_poll": _poll,
}
