"""Accesses by rows.

A tile address is nearly always a row offset plus consecutive columns. Where the terms of a pointer have that form,
memory moves whole rows and checks only where they start; whether the columns are consecutive is known when a launch
runs. Loads do the same where columns lie apart, in every row alike. Any other address takes the general way, element by
element.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from fuzz_attn.simulator.codegen.accesses import Access, sum_of_offsets
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Term, broadcast_shape
from fuzz_attn.simulator.codegen.tree.expressions import (
    ALL,
    NONE,
    Binary,
    Expression,
    call,
    constant,
    index,
    infix,
)
from fuzz_attn.simulator.codegen.tree.value_ranges import test_of_32_bits


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
