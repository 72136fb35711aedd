"""Emission of loops, branches and early returns.

A loop whose trip counts differ between programs runs them sorted by falling count, so that the programs still
running are always the first rows: leaving a loop costs a slice. A `while`, an `if` and a branch between blocks
take the rows of the programs that go there.
"""

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
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Region, Scope, Term, Val
from fuzz_attn.simulator.frontend.ir import Block, Operation, Value

TRIALS = 12


def _for(emitter: Emitter, operation: Operation) -> None:
    bounds = [emitter.operand(operation, index) for index in range(3)]
    inits = [emitter.val(value) for value in operation.operands[3:]]
    varying = any(term.varying for term in bounds)
    layouts = [layout_of(emitter, init, varying) for init in inits]
    for _ in range(TRIALS):
        state = emitter.snapshot()
        carried = [carry(emitter, layout, value) for layout, value in zip(layouts, operation.results, strict=True)]
        build = _for_varying if varying else _for_uniform
        yielded = build(emitter, operation, bounds, carried, inits)
        joined = [layout.join(other, emitter) for layout, other in zip(layouts, yielded, strict=True)]
        if varying:
            joined = [layout.diverged() for layout in joined]
        if joined == layouts:
            break
        emitter.rollback(state)
        layouts = joined
    for item, value in zip(carried, operation.results, strict=True):
        item.bind(emitter, value, emitter.region)


def loop_region(emitter: Emitter, scope: Scope) -> Region:
    """Return a region inside of the current one that runs more than once, for the lanes of `scope`."""
    return Region(emitter.region, scope, loop=True, depth=emitter.region.depth + 1)


def yields(operation: Operation, region: int = 0) -> list[Value]:
    """Return what a region of an operation yields."""
    return operation.regions[region][0].operations[-1].operands


def _number(emitter: Emitter, term: Term) -> str:
    return term.name if term.literal is not None else f"{emitter.name(term)}.item()"


def _for_uniform(
    emitter: Emitter, operation: Operation, bounds: list[Term], carried: list[Carried], inits: list[Val]
) -> list[Layout]:
    outer = emitter.region
    block = operation.regions[0][0]
    start_carried(emitter, carried, inits)
    region = loop_region(emitter, outer.scope)
    counter, name, limits = emitter.fresh("t"), emitter.fresh("i"), emitter.fresh("r")
    low, high, step = (_number(emitter, term) for term in bounds)
    outer.lines.append(f"{limits} = ({low}, {high} - 1, ())")
    element = block.arguments[0].type.element
    region.lines.append(f"{name} = np.array([{counter}], DTYPES['{element}'])")
    emitter.define(block.arguments[0], Term(name, (), False, region, element, range=limits))
    yielded = _body(emitter, region, block, carried, block.arguments[1:], union=False)
    outer.lines.append(f"check_iterations(len(range({low}, {high}, {step})))")
    outer.lines.append(f"for {counter} in range({low}, {high}, {step}):")
    outer.lines += indented(region.lines)
    return yielded


def _body(
    emitter: Emitter, region: Region, block: Block, carried: list[Carried], arguments: list[Value], union: bool
) -> list[Layout]:
    outer, emitter.region = emitter.region, region
    for item, argument in zip(carried, arguments, strict=True):
        item.bind(emitter, argument, region)
    emitter.emit(block.operations[:-1])
    vals = [emitter.val(value) for value in block.operations[-1].operands]
    yielded = [layout_of(emitter, val) for val in vals]
    if all(fits(item.layout, layout, emitter) for item, layout in zip(carried, yielded, strict=True)):
        advance_carried(emitter, carried, vals, union)
    emitter.region = outer
    return yielded


def _for_varying(
    emitter: Emitter, operation: Operation, bounds: list[Term], carried: list[Carried], inits: list[Val]
) -> list[Layout]:
    outer = emitter.region
    block = operation.regions[0][0]
    start_carried(emitter, carried, inits)
    scope = Scope(outer.scope, emitter.fresh("lanes"))
    region = loop_region(emitter, scope)
    counts, most, least, ends, order, saved, counter = (emitter.fresh(prefix) for prefix in "nmlepst")
    low, high, step = (emitter.array(term) for term in bounds)
    limits = emitter.fresh("r")
    names = ", ".join(emitter.name(term) for term in (low, high, step))
    outer.lines += [
        f"{counts} = trip_counts({names})",
        f"{most}, {least} = extremes({counts})",
        f"{ends}, {saved} = None, []",
        f"check_iterations({most})",
        f"{limits} = ranges.loop({emitter.name(low)}, {emitter.name(high)})",
    ]
    _induction(emitter, region, block.arguments[0], (low, step), counter, limits)
    yielded = _body(emitter, region, block, carried, block.arguments[1:], union=True)
    variables = flat_names(carried)
    outer.lines.append(f"if {most} != {least}:")
    outer.lines.append(f"    {order}, {ends} = longest_first({counts})")
    entry: list[str] = []
    enter_scope(entry, "take", order, scope, outer.scope.lanes, variables)
    outer.lines += indented(entry)
    outer.lines.append("else:")
    entry = []
    enter_scope(entry, "", "", scope, outer.scope.lanes, variables)
    outer.lines += indented(entry)
    everything = ", ".join([scope.lanes, *(capture[1] for capture in scope.captures.values()), *variables])
    outer.lines += [
        f"for {counter} in range({most}):",
        f"    if {counter} >= {least} and {ends}[{counter}] != {scope.lanes}.size:",
    ]
    left = ", ".join(f"{name}[{ends}[{counter}]:]" for name in variables)
    outer.lines += [f"        {saved}.append(({left}{',' if variables else ''}))"]
    outer.lines += [f"        {everything}, = head({ends}[{counter}], {everything})"]
    outer.lines += indented(region.lines)
    if variables:
        joined = ", ".join(variables)
        outer.lines += [f"if {ends} is not None:", f"    {joined}, = restore({order}, {saved}, ({joined},))"]
    return yielded


def _induction(
    emitter: Emitter, region: Region, argument: Value, terms: tuple[Term, Term], counter: str, limits: str
) -> None:
    low, step = terms
    name = emitter.fresh("i")
    element = argument.type.element
    region.lines.append(f"{name} = {emitter.name(low, region)} + {counter} * {emitter.name(step, region)}")
    emitter.define(argument, Term(name, (), low.varying or step.varying, region, element, range=limits))


HANDLERS: dict[str, Handler] = {"scf.for": _for}
