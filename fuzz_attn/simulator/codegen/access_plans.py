"""Access plans: how an access is emitted: its parts, its whole address, by rows where it can be, with its checks.

A tile address is nearly always a row offset plus consecutive columns. Where the terms of a pointer have that form,
memory moves whole rows and checks only where they start; whether the columns are consecutive is known when a launch
runs. Loads do the same where columns lie apart, in every row alike. Any other address takes the general way, element by
element.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from fuzz_attn.simulator.codegen.emitter import Emitter, cover, factors_of
from fuzz_attn.simulator.codegen.source_tree import (
    ALL,
    NONE,
    NUMPY,
    RUN,
    Attribute,
    Binary,
    Do,
    Expression,
    If,
    Name,
    call,
    constant,
    index,
    infix,
    joined,
    method,
    numpy,
)
from fuzz_attn.simulator.codegen.terms import (
    Term,
    Val,
    arm_of,
    broadcast_shape,
    high_of,
    low_of,
    taints_of,
    test_of_32_bits,
)
from fuzz_attn.simulator.runtime.ranges import HIGH, LOW
from fuzz_attn.ttir.ir import Operation


@dataclass(slots=True)
class Access:
    """The parts of one access: where, under which mask, and how the tile is shaped."""

    memory: Name
    pointer: Val
    mask: Val | None
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    varying: bool

    @property
    def rank(self) -> int:
        """The number of the tile's axes."""
        return len(self.sizes)

    @property
    def mask_terms(self) -> tuple[Term, ...]:
        """The terms of which the mask is the conjunction."""
        return self.mask.terms if self.mask else ()


def access_of(emitter: Emitter, operation: Operation, mask_index: int) -> Access:
    """Return the parts of a load, store or atomic, whose mask is the operand at `mask_index`."""
    pointer = emitter.val(operation.operands[0])
    if pointer.base is None:
        raise emitter.unsupported(f"{operation.name} through a pointer that is not an argument plus an offset")
    mask = emitter.val(operation.operands[mask_index]) if len(operation.operands) > mask_index else None
    if mask is not None and all(term.literal is True for term in mask.terms):
        mask = None
    sizes = pointer.type.shape
    terms = (*pointer.terms, *(mask.terms if mask is not None else ()))
    shape = broadcast_shape((term.shape for term in terms), len(sizes))
    if mask is not None and emitter.coverage:
        cover(emitter, operation.name.removeprefix("tt."), *factors_of(emitter, mask))
    return Access(pointer.base, pointer, mask, sizes, shape, any(term.varying for term in terms))


def sum_of_offsets(emitter: Emitter, access: Access, terms: list[Term]) -> Term:
    """Return the sum of offset terms as one 64-bit array with all axes."""
    ordered = sorted(terms, key=lambda term: (term.region.depth, term.varying))
    if all(term.literal is not None for term in ordered):
        total = sum(int(term.literal or 0) for term in ordered)
        return emitter.ranked(emitter.literal(total, (1,) * access.rank, "i64"))
    result = ordered[0]
    for term in ordered[1:]:
        result = _sum(emitter, result, term)
    if result.element != "i64":
        result = _widened(emitter, result)
    return emitter.cached(("ranked", result), lambda: emitter.ranked(result))


def offset_of(emitter: Emitter, pointer: Val) -> Term:
    """Return where a pointer points, in elements from its tensor's first one, as one 64-bit array."""
    assert pointer.base is not None
    sizes = pointer.type.shape
    shape = broadcast_shape((term.shape for term in pointer.terms), len(sizes))
    return full_offsets(emitter, Access(pointer.base, pointer, None, sizes, shape, pointer.varying))


def _sum(emitter: Emitter, left: Term, right: Term) -> Term:
    shape = broadcast_shape((left.shape, right.shape), len(left.shape))
    wide = left.element == right.element == "i64" or (left.literal is not None and right.element == "i64")
    wide = wide or (right.literal is not None and left.element == "i64")
    build = infix("+") if wide else (lambda *operands: call("add_wide", *operands))
    return emitter.cached(("sum", left, right), lambda: emitter.assign(build, [left, right], shape, "i64"))


def _widened(emitter: Emitter, term: Term) -> Term:
    def build(operand: Expression) -> Expression:
        return numpy("asarray", operand, Attribute(NUMPY, "int64"))

    return emitter.cached(("wide", term), lambda: emitter.assign(build, [term], term.shape, "i64"))


def full_offsets(emitter: Emitter, access: Access) -> Term:
    """Return the whole address; 32-bit sums are added up in 32 bits first, so that they wrap as the IR says."""
    grouped = {term for group in access.pointer.groups for term in group.terms}
    terms = [term for term in access.pointer.terms if term not in grouped]
    terms += [emitter.single(group) for group in access.pointer.groups]
    return sum_of_offsets(emitter, access, terms)


def spread_offsets(emitter: Emitter, access: Access) -> Term:
    """Return the whole address, spread over the tile."""
    offsets = full_offsets(emitter, access)
    return offsets if not access.rank else emitter.spread(offsets, access.sizes)


def whole_mask(emitter: Emitter, access: Access) -> Expression:
    """Return the mask with all axes, or None."""
    return NONE if access.mask is None else emitter.read(emitter.ranked(emitter.single(access.mask)))


def moved(array: Expression, axis: int, rank: int, inverse: bool = False) -> Expression:
    """Return an array with the column axis moved from the end to its place, or back."""
    if axis == rank - 1:
        return array
    order = [0, *range(1, rank + 1)]
    if inverse:
        order.remove(axis + 1)
        order.append(axis + 1)
    else:
        order.insert(axis + 1, order.pop())
    return method(array, "transpose", constant(tuple(order)))


def check_overflow(emitter: Emitter, access: Access) -> None:
    """Emit the checks for 32-bit overflow that reaches the address of an element which is really accessed."""
    _check_groups(emitter, access)
    _check_taints(emitter, access)


def _check_taints(emitter: Emitter, access: Access) -> None:
    pointer = access.pointer
    found = [term.range for term in pointer.terms] + [group.range for group in pointer.groups] + [*pointer.hints]
    taints = {one.expression.text: taints_of(one) for one in found if one is not None and not one.clean}
    if not taints:
        return
    ordered = [taints[text] for text in sorted(taints)]
    with emitter.inside(arm_of(emitter.region)) as inner:
        mask = whole_mask(emitter, access)
        given = (access.memory, emitter.lanes, joined("+", ordered), mask, constant(access.rank))
        emitter.add(Do(method(RUN, "overflow", *given)))
    emitter.add(If(joined("or", ordered), inner.statements))


def _check_groups(emitter: Emitter, access: Access) -> None:
    """32-bit sums that were kept as terms are examined when their range says that they may wrap."""
    for group in access.pointer.groups:
        if group.range is None or group.range.fits_32_bits:
            continue
        terms = [emitter.read(emitter.array(term)) for term in group.terms]
        below = Binary("<", low_of(group.range), constant(LOW))
        leaves = Binary("or", below, Binary(">", high_of(group.range), constant(HIGH)))
        with emitter.inside(arm_of(emitter.region)) as inner:
            mask = whole_mask(emitter, access)
            given = (access.memory, emitter.lanes, emitter.site(), mask, constant(access.rank), *terms)
            emitter.add(Do(method(RUN, "overflow_sum", *given)))
        emitter.add(If(leaves, inner.statements))


def lane_arguments(emitter: Emitter) -> tuple[Name, Expression, Name]:
    """Return the first arguments of an access: the run, the source line and the lanes."""
    return RUN, emitter.site(), emitter.lanes


@dataclass(slots=True)
class Rows:
    """What an access by rows needs: tests of the address's form, where rows start, their width, the mask of rows."""

    tests: list[Expression]
    starts: Expression
    width: Expression
    mask: Expression


def column_axes(access: Access) -> list[tuple[int, Term]]:
    """Return axes along which only one term moves the address, the same for all programs, with that term."""
    return [(axis, term) for axis, term in _uniform_axes(access) if term.affine]


def apart_axes(access: Access) -> list[tuple[int, Term]]:
    """Return axes along which only one term moves the address whose columns may lie apart, known before a launch."""
    return [(axis, term) for axis, term in _uniform_axes(access) if term.start is None and term.region.shared]


def _uniform_axes(access: Access) -> list[tuple[int, Term]]:
    found = []
    for axis in range(access.rank):
        moving = [term for term in access.pointer.terms if term.shape[axis] != 1]
        if len(moving) != 1:
            continue
        term = moving[0]
        only_here = all(size == 1 for other, size in enumerate(term.shape) if other != axis)
        if only_here and not term.varying and access.sizes[axis] > 1 and _mask_splits(access, axis):
            found.append((axis, term))
    return found[::-1]


def _mask_splits(access: Access, axis: int) -> bool:
    """Return whether the mask is one of columns along this axis, the same for all programs, and one of rows."""
    return not any(
        term.shape[axis] != 1 and (term.varying or sum(size != 1 for size in term.shape) > 1)
        for term in access.mask_terms
    )


def plan_rows(emitter: Emitter, access: Access, axis: int, column: Term) -> Rows:
    """Return the access by rows of consecutive columns along `axis`."""
    if column.start is not None:
        plan = _rows(emitter, access, axis, column)
        if column.start:
            plan.starts = Binary("+", plan.starts, constant(column.start))
        return plan
    first = _probe(emitter, "unit_start", column, access.sizes[axis])
    plan = _rows(emitter, access, axis, column)
    plan.tests.insert(0, Binary("is not", first, NONE))
    plan.starts = Binary("+", plan.starts, first)
    return plan


def plan_columns(emitter: Emitter, access: Access, axis: int, column: Term) -> tuple[Expression, Rows]:
    """Return the variable that holds where columns along `axis` lie in each row, and the access by these rows."""
    columns = _probe(emitter, "columns_of", column, access.sizes[axis])
    return columns, _rows(emitter, access, axis, column)


def _rows(emitter: Emitter, access: Access, axis: int, column: Term) -> Rows:
    others = [term for term in access.pointer.terms if term is not column]
    starts = emitter.read(sum_of_offsets(emitter, access, others))
    tests: list[Expression] = []
    width = _width(emitter, access, axis, tests)
    mask = _row_mask(emitter, access, axis)
    for group in access.pointer.groups:
        if group.range is not None and not group.range.fits_32_bits:
            tests.append(test_of_32_bits(group.range))
    return Rows(tests, _without(starts, axis, access.rank), width, mask)


def _without(array: Expression, axis: int, rank: int) -> Expression:
    """Return an array without one of the tile's axes, of length 1."""
    return index(array, *[ALL] * (axis + 1), constant(0), *[ALL] * (rank - axis - 1))


def _width(emitter: Emitter, access: Access, axis: int, tests: list[Expression]) -> Expression:
    """Return how many leading columns the mask lets through; append the test that these are all."""
    width: Expression = constant(access.sizes[axis])
    for term in access.mask_terms:
        if term.shape[axis] != 1 and term.prefix is not None:
            width = constant(term.prefix)
        elif term.shape[axis] != 1:
            width = _probe(emitter, "prefix_length", term, access.sizes[axis])
            tests.append(Binary("is not", width, NONE))
    return width


def _row_mask(emitter: Emitter, access: Access, axis: int) -> Expression:
    masks = [term for term in access.mask_terms if term.shape[axis] == 1]
    if not masks:
        return NONE
    combined = masks[0]
    for term in masks[1:]:
        combined = _conjunction(emitter, combined, term, access.rank)
    return _without(emitter.read(emitter.ranked(combined)), axis, access.rank)


def _conjunction(emitter: Emitter, left: Term, right: Term, rank: int) -> Term:
    shape = broadcast_shape((left.shape, right.shape), rank)
    return emitter.cached(("and", left, right), lambda: emitter.assign(infix("&"), [left, right], shape, "i1"))


def _probe(emitter: Emitter, function: str, term: Term, size: int) -> Expression:
    """Return the variable for what a function finds out about a term when the launch runs."""

    def make() -> Term:
        array = emitter.array(term)
        return emitter.assign(
            lambda operand: call(function, operand, constant(size)), [array], (), "i64", varying=False
        )

    key: Hashable = (function, term, size)
    return emitter.cached(key, make).expression
