"""Emission of `scf.while`: the programs whose condition fails leave, with the values that they forward."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.carried import (
    Carried,
    Layout,
    advance_carried,
    carry,
    enter_scope,
    fits,
    flat_names,
    indented,
    layout_of,
    start_carried,
)
from fuzz_attn.simulator.codegen.emission import cover
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.operations.for_loops import TRIALS, loop_region
from fuzz_attn.simulator.codegen.terms import Region, Scope, Val
from fuzz_attn.simulator.frontend.ir import Block, Operation, Value


def _while(emitter: Emitter, operation: Operation) -> None:
    inits = [emitter.val(value) for value in operation.operands]
    varying = False
    layouts = [layout_of(emitter, init) for init in inits]
    for _ in range(TRIALS):
        state = emitter.snapshot()
        diverges, yielded, forwarded = _while_trial(emitter, operation, layouts, inits, varying)
        joined = [layout.join(other, emitter) for layout, other in zip(layouts, yielded, strict=True)]
        if diverges <= varying and joined == layouts:
            break
        emitter.rollback(state)
        varying = varying or diverges
        layouts = [layout.diverged() for layout in joined] if varying else joined
    for item, value in zip(forwarded, operation.results, strict=True):
        item.bind(emitter, value, emitter.region)


def _while_trial(
    emitter: Emitter, operation: Operation, layouts: list[Layout], inits: list[Val], varying: bool
) -> tuple[bool, list[Layout], list[Carried]]:
    outer = emitter.region
    before, after = operation.regions[0][0], operation.regions[1][0]
    carried = [carry(emitter, layout, value) for layout, value in zip(layouts, before.arguments, strict=True)]
    start_carried(emitter, carried, inits)
    scope = Scope(outer.scope, emitter.fresh("lanes")) if varying else outer.scope
    first, second = loop_region(emitter, scope), loop_region(emitter, scope)
    emitter.region = first
    for item, argument in zip(carried, before.arguments, strict=True):
        item.bind(emitter, argument, first)
    emitter.emit(before.operations[:-1])
    last = before.operations[-1]
    condition = emitter.array(emitter.operand(last, 0))
    if emitter.coverage:
        cover(emitter, "while", condition)
    vals = [emitter.val(value) for value in last.operands[1:]]
    shapes = [layout_of(emitter, val).released(outer) for val in vals]
    shapes = [layout.diverged() for layout in shapes] if varying else shapes
    forwarded = [carry(emitter, layout, value) for layout, value in zip(shapes, operation.results, strict=True)]
    _start_forwarded(emitter, forwarded, vals, after.arguments)
    test = emitter.name(condition)
    emitter.region = outer
    yielded = _while_body(emitter, second, after, carried, forwarded)
    _while_lines(emitter, outer, scope, (first, second), forwarded, test, varying)
    return condition.varying, yielded, forwarded


def _start_forwarded(emitter: Emitter, forwarded: list[Carried], vals: list[Val], arguments: list[Value]) -> None:
    for item, argument in zip(forwarded, arguments, strict=True):
        if item.range is None and argument in emitter.tracked:
            item.range = emitter.fresh("r")
    start_carried(emitter, forwarded, vals)


def _while_body(
    emitter: Emitter, region: Region, after: Block, carried: list[Carried], forwarded: list[Carried]
) -> list[Layout]:
    outer, emitter.region = emitter.region, region
    for item, argument in zip(forwarded, after.arguments, strict=True):
        item.bind(emitter, argument, region)
    emitter.emit(after.operations[:-1])
    vals = [emitter.val(value) for value in after.operations[-1].operands]
    yielded = [layout_of(emitter, val) for val in vals]
    if all(fits(item.layout, layout, emitter) for item, layout in zip(carried, yielded, strict=True)):
        advance_carried(emitter, carried, vals, union=True)
    emitter.region = outer
    return yielded


def _while_lines(
    emitter: Emitter,
    outer: Region,
    scope: Scope,
    regions: tuple[Region, Region],
    forwarded: list[Carried],
    test: str,
    varying: bool,
) -> None:
    count, saved, positions, staying = (emitter.fresh(prefix) for prefix in "nspe")
    names = flat_names(forwarded)
    first, second = regions
    outer.lines.append(f"{count} = 0")
    if varying:
        entry: list[str] = []
        enter_scope(entry, "", "", scope, outer.scope.lanes, [])
        outer.lines += [f"{positions}, {saved} = np.arange({outer.scope.lanes}.size), []", *entry]
    outer.lines.append("while True:")
    outer.lines += indented(first.lines)
    if varying:
        everything = ", ".join([positions, scope.lanes, *(capture[1] for capture in scope.captures.values()), *names])
        outer.lines += [
            f"    {staying} = np.count_nonzero({test})",
            f"    if not {staying}:",
            f"        {saved}.append(({', '.join([positions, *names])},))",
            "        break",
            f"    if {staying} != {test}.size:",
            f"        {saved}.append(take(~{test}, {', '.join([positions, *names])}))",
            f"        {everything}, = take({test}, {everything})",
        ]
    else:
        outer.lines.append(f"    if not {test}.item(): break")
    outer.lines += indented(second.lines)
    outer.lines += [f"    {count} += 1", f"    check_iterations({count})"]
    if varying and names:
        outer.lines.append(f"{', '.join(names)}, = collect({saved})")


HANDLERS: dict[str, Handler] = {"scf.while": _while}
