"""Emission of `scf.if`: by one arm, by both for the programs that take them, or by selection."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.carried import (
    Carried,
    Layout,
    carry,
    enter_scope,
    flat_names,
    indented,
    layout_of,
    start_carried,
)
from fuzz_attn.simulator.codegen.emission import cover
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.operations.for_loops import yields
from fuzz_attn.simulator.codegen.terms import Region, Scope, Term, Val
from fuzz_attn.simulator.frontend.ir import Block, Operation

_SPECULATION_LIMIT = 6


def _cheap(operation: Operation) -> bool:
    """Whether running both arms costs less than parting the programs."""
    inner = [inner for region in operation.regions for inner in region[0].operations[:-1]]
    return len(inner) <= _SPECULATION_LIMIT and all(
        op.name.startswith(("arith.", "math."))
        and not any(result.type.shape or result.type.pointer for result in op.results)
        for op in inner
    )


def _if(emitter: Emitter, operation: Operation) -> None:
    condition = emitter.array(emitter.operand(operation, 0))
    if emitter.coverage:
        cover(emitter, "branch", condition)
    pointers = any(value.type.pointer for value in operation.results)
    if operation.results and not pointers and condition.varying and len(operation.regions) == 2 and _cheap(operation):
        _speculate(emitter, operation)
        return
    arms = []
    for region in operation.regions:
        scope = Scope(emitter.region.scope, emitter.fresh("lanes")) if condition.varying else emitter.region.scope
        arms.append(_arm(emitter, region[0], scope))
    results = _join_arms(emitter, operation, arms, condition.varying)
    if condition.varying:
        _if_varying(emitter, condition, arms, results)
    else:
        emitter.line(f"if {emitter.name(condition)}.item():")
        emitter.region.lines += indented(arms[0][0].lines)
        if len(arms) > 1:
            emitter.line("else:")
            emitter.region.lines += indented(arms[1][0].lines)
    for item, value in zip(results, operation.results, strict=True):
        item.bind(emitter, value, emitter.region)


def _speculate(emitter: Emitter, operation: Operation) -> None:
    for region in operation.regions:
        emitter.emit(region[0].operations[:-1])
    for result, left, right in zip(operation.results, yields(operation, 0), yields(operation, 1), strict=True):
        select = Operation("arith.select", [operation.operands[0], left, right], [result], location=operation.location)
        coverage, emitter.coverage = emitter.coverage, False
        emitter.emit([select])
        emitter.coverage = coverage


def _arm(emitter: Emitter, block: Block, scope: Scope) -> tuple[Region, list[Val]]:
    outer = emitter.region
    region = emitter.region = Region(outer, scope, depth=outer.depth + 1)
    operations = block.operations
    emitter.emit(operations[:-1] if operations and operations[-1].name == "scf.yield" else operations)
    vals = (
        [emitter.val(value) for value in operations[-1].operands]
        if operations and operations[-1].name == "scf.yield"
        else []
    )
    emitter.region = outer
    return region, vals


def _join_arms(
    emitter: Emitter, operation: Operation, arms: list[tuple[Region, list[Val]]], varying: bool
) -> list[Carried]:
    """Variables for the results, assigned at the end of each arm."""
    if not operation.results:
        return []
    outer = emitter.region
    layouts: list[list[Layout]] = []
    for region, vals in arms:
        emitter.region = region
        layouts.append([layout_of(emitter, val, varying) for val in vals])
    emitter.region = outer
    joined = [left.join(right, emitter) for left, right in zip(*layouts, strict=True)]
    if varying:
        joined = [layout.diverged() for layout in joined]
    results = [carry(emitter, layout, value) for layout, value in zip(joined, operation.results, strict=True)]
    for index, (region, vals) in enumerate(arms):
        emitter.region = region
        suffix = f"_{index}" if varying else ""
        items = [
            Carried(item.layout, [name + suffix for name in item.names], item.range + suffix if item.range else None)
            for item in results
        ]
        start_carried(emitter, items, vals)
    emitter.region = outer
    return results


def _if_varying(
    emitter: Emitter, condition: Term, arms: list[tuple[Region, list[Val]]], results: list[Carried]
) -> None:
    outer = emitter.region
    test, count, rest = emitter.name(condition), emitter.fresh("n"), emitter.fresh("m")
    lanes = outer.scope.lanes
    outer.lines.append(f"{count} = int(np.count_nonzero({test}))")
    for index, (region, _) in enumerate(arms):
        mask = test if index == 0 else rest
        whole = f"{count} == {lanes}.size" if index == 0 else f"not {count}"
        outer.lines.append(f"if {count}:" if index == 0 else f"if {count} != {lanes}.size:")
        everyone: list[str] = []
        some: list[str] = []
        enter_scope(everyone, "", "", region.scope, lanes, [])
        enter_scope(some, "take", mask, region.scope, lanes, [])
        lines = [f"if {whole}:", *indented(everyone), "else:"]
        if index:
            lines.append(f"    {rest} = ~{test}")
        outer.lines += indented([*lines, *indented(some), *region.lines])
    _blend(outer, results, test, count, lanes)


def _blend(outer: Region, results: list[Carried], test: str, count: str, lanes: str) -> None:
    names = flat_names(results)
    if not names:
        return
    ranges = [item.range for item in results if item.range]
    everything = [*names, *ranges]
    joined = ", ".join(everything)
    outer.lines += [
        f"if {count} == {lanes}.size:",
        f"    {joined}, = {', '.join(f'{name}_0' for name in everything)},",
        f"elif not {count}:",
        f"    {joined}, = {', '.join(f'{name}_1' for name in everything)},",
        "else:",
    ]
    blends = [f"blend({test}, {name}_0, {name}_1)" for name in names] + [
        f"ranges.union({name}_0, {name}_1)" for name in ranges
    ]
    outer.lines.append(f"    {joined}, = {', '.join(blends)},")


HANDLERS: dict[str, Handler] = {"scf.if": _if}
