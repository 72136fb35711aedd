"""Emission of loads, stores and atomics."""

from __future__ import annotations

import re
from collections.abc import Callable

from fuzz_attn.simulator.codegen.accesses import (
    Access,
    access_of,
    apart_axes,
    check_groups,
    check_taints,
    column_axes,
    full_offsets,
    inner_region,
    mask_text,
    moved,
    plan_columns,
    plan_rows,
    spread_offsets,
)
from fuzz_attn.simulator.codegen.emission import track_exactly
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Term, broadcast_shape
from fuzz_attn.simulator.frontend.ir import Operation

_RMW = re.compile(r"^\s*(\w+),")


def _by_form(
    emitter: Emitter,
    access: Access,
    axes: list[tuple[int, Term]],
    by_rows: Callable[[int, str, str, str], str],
    general: Callable[[], None],
) -> None:
    """Emit the access by rows along the first axis with consecutive columns, or else element by element.

    `by_rows` makes the line from (axis, row starts, width, row mask).
    """
    if not axes:
        general()
        return
    axis, column = axes[0]
    plan = plan_rows(emitter, access, axis, column)
    line = by_rows(axis, plan.starts, plan.width, plan.mask)
    if not plan.conditions:
        emitter.line(line)
        return
    emitter.region.lines += [f"if {' and '.join(plan.conditions)}:", f"    {line}"]
    _otherwise(emitter, "else", lambda: _by_form(emitter, access, axes[1:], by_rows, general))


def _otherwise(emitter: Emitter, condition: str, emit: Callable[[], None]) -> None:
    """Emit lines that only run under a condition."""
    outer, inner = emitter.region, inner_region(emitter)
    emitter.region = inner
    emit()
    emitter.region = outer
    outer.lines += [f"{condition}:", *(f"    {line}" for line in inner.lines)]


def _load(emitter: Emitter, operation: Operation) -> None:
    access = access_of(emitter, operation, 1)
    result = operation.results[0]
    other = emitter.operand(operation, 2) if len(operation.operands) > 2 and access.mask is not None else None
    if other is not None:
        access.shape = broadcast_shape((access.shape, other.shape), access.rank)
        access.varying = access.varying or other.varying
    check_groups(emitter, access)
    check_taints(emitter, access)
    name = emitter.fresh()
    call = f"(run, {emitter.site()}, {emitter.region.scope.lanes}"

    def by_rows(axis: int, starts: str, width: str, mask: str) -> str:
        filler = "None" if other is None else _scalar(emitter, other)
        arguments = f"{starts}, {width}, {access.sizes[axis]}, {mask}, {filler}"
        return f"{name} = {access.memory}.load_rows{call}, {arguments}){moved(axis, access.rank)}"

    def general() -> None:
        offsets = emitter.name(full_offsets(emitter, access))
        if other is not None and not other.bare:
            count = f"{emitter.region.scope.lanes}.size" if access.varying else "1"
            offsets = f"np.broadcast_to({offsets}, ({count}, {', '.join(map(str, access.shape))},))"
        filler = "None" if other is None else emitter.name(other)
        emitter.line(f"{name} = {access.memory}.load{call}, {offsets}, {mask_text(emitter, access.mask)}, {filler})")

    def apart() -> None:
        axes = apart_axes(access) if other is None or other.bare else []
        if not axes:
            general()
            return
        axis = axes[0][0]
        columns, plan = plan_columns(emitter, access, *axes[0])
        filler = "None" if other is None else _scalar(emitter, other)
        arguments = f"{plan.starts}, {columns}, {plan.width}, {access.sizes[axis]}, {plan.mask}, {filler}"
        condition = f" if {' and '.join(plan.conditions)} else None" if plan.conditions else ""
        emitter.line(f"{name} = {access.memory}.load_columns({arguments}){condition}")
        _otherwise(emitter, f"if {name} is None", general)
        order = moved(axis, access.rank)
        if order:  # a dot product rounds by the order in memory
            emitter.region.lines += ["else:", f"    {name} = np.ascontiguousarray({name}{order})"]

    axes = column_axes(access) if other is None or other.bare else []
    _by_form(emitter, access, axes, by_rows, apart)
    term = Term(name, access.shape, access.varying, emitter.region, result.type.element)
    emitter.define(result, term)
    if result in emitter.tracked:
        track_exactly(emitter, Operation("", []), term)


def _scalar(emitter: Emitter, term: Term) -> str:
    return emitter.name(term) if term.literal is not None else f"{emitter.name(term)}.item()"


def _store(emitter: Emitter, operation: Operation) -> None:
    access = access_of(emitter, operation, 2)
    values, last = emitter.operand(operation, 1), ""
    if values.unrounded is not None:  # only what is stored is rounded then
        values, last = values.unrounded, ", True"
    check_groups(emitter, access)
    check_taints(emitter, access)
    call = f"(run, {emitter.site()}, {emitter.region.scope.lanes}"

    def by_rows(axis: int, starts: str, width: str, mask: str) -> str:
        shape = (*values.shape[:axis], access.sizes[axis], *values.shape[axis + 1 :])
        spread = emitter.ranked(values)
        source = emitter.name(spread)
        if spread.shape != shape:
            source = f"spread({source}, {shape})"
        order = moved(axis, access.rank, inverse=True)
        return f"{access.memory}.store_rows{call}, {starts}, {width}, {source}{order}, {mask}{last})"

    def general() -> None:
        offsets = emitter.name(spread_offsets(emitter, access))
        source = emitter.name(values if values.literal is not None else emitter.ranked(values))
        emitter.line(f"{access.memory}.store{call}, {offsets}, {source}, {mask_text(emitter, access.mask)}{last})")

    _by_form(emitter, access, column_axes(access), by_rows, general)


def _atomic(emitter: Emitter, operation: Operation) -> None:
    exchange = operation.name == "tt.atomic_cas"
    access = access_of(emitter, operation, 3 if exchange else 2)
    result = operation.results[0]
    check_groups(emitter, access)
    check_taints(emitter, access)
    match = _RMW.match(operation.text)
    kind = "cas" if exchange or match is None else match.group(1)
    site, lanes = emitter.site(), emitter.region.scope.lanes
    offsets = emitter.name(spread_offsets(emitter, access))
    values = [
        emitter.name(emitter.ranked(emitter.operand(operation, index))) for index in ((1, 2) if exchange else (1,))
    ]
    name = emitter.fresh()
    mask = mask_text(emitter, access.mask)
    element = result.type.element
    where = f"{site}, {lanes}, {offsets}, {mask}, {', '.join(values)}"
    emitter.line(f"{name} = atomic(run, {access.memory}, '{kind}', '{element}', {where})")
    term = Term(name, access.sizes, True, emitter.region, result.type.element)
    emitter.define(result, term)
    if result in emitter.tracked:
        track_exactly(emitter, Operation("", []), term)


HANDLERS: dict[str, Handler] = {
    "tt.load": _load,
    "tt.store": _store,
    "tt.atomic_rmw": _atomic,
    "tt.atomic_cas": _atomic,
}
