"""Emission of loads, stores and atomics.

A tile address is nearly always a row offset plus consecutive columns. Where the terms of a pointer have that
form, memory moves whole rows and checks only where they start; whether the columns are consecutive is known at
run time, once a launch. Loads do the same where columns lie apart, in every row alike. Any other address takes the
general path, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuzz_attn.simulator.codegen.emission import cover, factors_of
from fuzz_attn.simulator.codegen.emitter import Emitter, fits_32_bits
from fuzz_attn.simulator.codegen.terms import Region, Term, Val, broadcast_shape
from fuzz_attn.simulator.frontend.ir import Operation
from fuzz_attn.simulator.runtime.ranges import HIGH, LOW


@dataclass(slots=True)
class Access:
    """The parts of one access: where, under which mask, and how the tile is shaped."""

    memory: str
    pointer: Val
    mask: Val | None
    rank: int
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    varying: bool


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
    varying = any(term.varying for term in terms)
    if mask is not None and emitter.coverage:
        cover(emitter, operation.name[3:], *factors_of(emitter, mask))
    return Access(pointer.base, pointer, mask, len(sizes), sizes, shape, varying)


def column_axes(access: Access) -> list[tuple[int, Term]]:
    """Axes along which one term alone moves the address, the same for all programs, with that term."""
    return [(axis, term) for axis, term in _uniform_axes(access) if term.affine]


def apart_axes(access: Access) -> list[tuple[int, Term]]:
    """Axes with the term that alone moves the address, where its columns may lie apart, known before a launch runs."""
    return [(axis, term) for axis, term in _uniform_axes(access) if term.start is None and term.region.shared]


def _uniform_axes(access: Access) -> list[tuple[int, Term]]:
    found = []
    for axis in range(access.rank):
        moving = [term for term in access.pointer.terms if term.shape[axis] != 1]
        if len(moving) != 1:
            continue
        term = moving[0]
        alone = all(size == 1 for other, size in enumerate(term.shape) if other != axis)
        if alone and not term.varying and access.sizes[axis] > 1 and _mask_splits(access, axis):
            found.append((axis, term))
    return found[::-1]


def _mask_splits(access: Access, axis: int) -> bool:
    for term in access.mask.terms if access.mask else ():
        if term.shape[axis] != 1 and (term.varying or sum(size != 1 for size in term.shape) > 1):
            return False
    return True


def _offsets(emitter: Emitter, access: Access, terms: list[Term]) -> Term:
    """Return the sum of offset terms as one 64-bit array with all axes."""
    if not terms:
        return emitter.ranked(emitter.literal(0, (1,) * access.rank, "i64"))
    ordered = sorted(terms, key=lambda term: (term.region.depth, term.varying))
    if all(term.literal is not None for term in ordered):
        total = sum(int(term.literal or 0) for term in ordered)
        return emitter.ranked(emitter.literal(total, (1,) * access.rank, "i64"))
    result = ordered[0]
    for term in ordered[1:]:
        result = _add_cached(emitter, result, term)
    if result.element != "i64":
        result = _cached(emitter, ("wide", result), "np.asarray({0}, np.int64)", [result], result.shape)
    return _cached(emitter, ("ranked", result), "", [result], result.shape)


def _add_cached(emitter: Emitter, left: Term, right: Term) -> Term:
    shape = broadcast_shape((left.shape, right.shape), len(left.shape))
    wide = left.element == right.element == "i64" or (left.literal is not None and right.element == "i64")
    wide = wide or (right.literal is not None and left.element == "i64")
    template = "{0} + {1}" if wide else "add_wide({0}, {1})"
    return _cached(emitter, ("sum", left, right), template, [left, right], shape)


def _cached(
    emitter: Emitter, key: tuple[object, ...], template: str, terms: list[Term], shape: tuple[int, ...]
) -> Term:
    known = emitter.cache.get(key)
    if known is None or not known.region.encloses(emitter.region):
        known = emitter.assign(template, terms, shape, "i64") if template else emitter.ranked(terms[0])
        emitter.cache[key] = known
    return known


def full_offsets(emitter: Emitter, access: Access) -> Term:
    """All of the address; 32-bit sums are added up in 32 bits first, so that they wrap as the IR says."""
    grouped = {term for group in access.pointer.groups for term in group.terms}
    terms = [term for term in access.pointer.terms if term not in grouped]
    for group in access.pointer.groups:
        terms.append(emitter.single(group))
    return _offsets(emitter, access, terms)


def mask_text(emitter: Emitter, mask: Val | None) -> str:
    """Return source of a mask with all axes, or of None."""
    return "None" if mask is None else emitter.name(emitter.ranked(emitter.single(mask)))


def inner_region(emitter: Emitter) -> Region:
    """Return a region for the lines of one arm of a test on the address's form."""
    outer = emitter.region
    return Region(outer, outer.scope, depth=outer.depth + 1)


@dataclass(slots=True)
class Rows:
    """Source of what an access by rows needs: conditions, where rows start, their width, and the mask of rows."""

    conditions: list[str]
    starts: str
    width: str
    mask: str


def plan_rows(emitter: Emitter, access: Access, axis: int, column: Term) -> Rows:
    """Return the access by rows of consecutive columns along `axis`."""
    size = access.sizes[axis]
    if column.start is not None:
        unit = str(column.start)
        plan = _rows(emitter, access, axis, column)
    else:
        unit = _probe(emitter, ("unit", column, size), f"unit_start({{0}}, {size})", column)
        plan = _rows(emitter, access, axis, column)
        plan.conditions.insert(0, f"{unit} is not None")
    if unit != "0":
        plan.starts += f" + {unit}"
    return plan


def plan_columns(emitter: Emitter, access: Access, axis: int, column: Term) -> tuple[str, Rows]:
    """Return the variable that tells where columns along `axis` lie in each row, and the access by these rows."""
    size = access.sizes[axis]
    columns = _probe(emitter, ("columns", column, size), f"columns_of({{0}}, {size})", column)
    return columns, _rows(emitter, access, axis, column)


def _rows(emitter: Emitter, access: Access, axis: int, column: Term) -> Rows:
    size = access.sizes[axis]
    conditions = []
    starts = emitter.name(_offsets(emitter, access, [term for term in access.pointer.terms if term is not column]))
    drop = "[" + ", ".join([":"] * (axis + 1) + ["0"] + [":"] * (access.rank - axis - 1)) + "]"
    width, row_mask = str(size), "None"
    for term in access.mask.terms if access.mask else ():
        if term.shape[axis] != 1 and term.prefix is not None:
            width = str(term.prefix)
        elif term.shape[axis] != 1:
            width = _probe(emitter, ("prefix", term, size), f"prefix_length({{0}}, {size})", term)
            conditions.append(f"{width} is not None")
    masks = [term for term in (access.mask.terms if access.mask else ()) if term.shape[axis] == 1]
    if masks:
        combined = masks[0]
        for term in masks[1:]:
            shape = broadcast_shape((combined.shape, term.shape), access.rank)
            combined = _cached(emitter, ("and", combined, term), "{0} & {1}", [combined, term], shape)
            combined.element = "i1"
        row_mask = emitter.name(emitter.ranked(combined)) + drop
    for group in access.pointer.groups:
        if group.range and not fits_32_bits(group.range):
            conditions.append(f"{group.range}[0] >= {LOW} and {group.range}[1] <= {HIGH}")
    return Rows(conditions, starts + drop, width, row_mask)


def _probe(emitter: Emitter, key: tuple[object, ...], template: str, term: Term) -> str:
    known = emitter.cache.get(key)
    if known is None or not known.region.encloses(emitter.region):
        known = emitter.assign(template, [emitter.array(term)], (), "i64", varying=False)
        emitter.cache[key] = known
    return known.name


def moved(axis: int, rank: int, inverse: bool = False) -> str:
    """Source that moves the column axis from the end to its place, or back."""
    if axis == rank - 1:
        return ""
    order = [0, *range(1, rank + 1)]
    if inverse:
        order.remove(axis + 1)
        order.append(axis + 1)
    else:
        order.insert(axis + 1, order.pop())
    return f".transpose({tuple(order)})"


def check_taints(emitter: Emitter, access: Access) -> None:
    """Emit the check for 32-bit overflow that reaches the address of an element which is really accessed."""
    found = [term.range for term in access.pointer.terms] + [group.range for group in access.pointer.groups]
    names = {name for name in found if name and not emitter.is_clean(name)}
    if not names:
        return
    ordered = sorted(names)
    emitter.line("if " + " or ".join(f"{name}[2]" for name in ordered) + ":")
    outer, inner = emitter.region, inner_region(emitter)
    emitter.region = inner
    mask = mask_text(emitter, access.mask)
    taints = " + ".join(f"{name}[2]" for name in ordered)
    emitter.line(f"run.overflow({access.memory}, {emitter.region.scope.lanes}, {taints}, {mask}, {access.rank})")
    emitter.region = outer
    outer.lines += [f"    {line}" for line in inner.lines]


def check_groups(emitter: Emitter, access: Access) -> None:
    """32-bit sums that were kept as terms are examined when their range says that they may wrap."""
    for group in access.pointer.groups:
        if not group.range or fits_32_bits(group.range):
            continue
        names = ", ".join(emitter.name(emitter.array(term)) for term in group.terms)
        emitter.line(f"if {group.range}[0] < {LOW} or {group.range}[1] > {HIGH}:")
        outer, inner = emitter.region, inner_region(emitter)
        emitter.region = inner
        mask = mask_text(emitter, access.mask)  # may take lines of its own
        place = f"{access.memory}, {emitter.region.scope.lanes}, {emitter.site()}"
        emitter.line(f"run.overflow_sum({place}, {mask}, {access.rank}, {names})")
        emitter.region = outer
        outer.lines += [f"    {line}" for line in inner.lines]


def spread_offsets(emitter: Emitter, access: Access) -> Term:
    """Return the whole address, spread over the tile."""
    offsets = full_offsets(emitter, access)
    return offsets if not access.rank else emitter.spread(offsets, access.sizes)
