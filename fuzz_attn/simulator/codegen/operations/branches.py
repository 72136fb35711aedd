"""`scf.if`: by one arm, by both for the programs that take them, or by selection."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz_attn.simulator.codegen.carried import (
    Carried,
    bind_all,
    carry_all,
    entered,
    flat_names,
    join_all,
    layout_of,
    start_carried,
    taken,
    unpacked,
)
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, cover
from fuzz_attn.simulator.codegen.expressions import Binary, Expression, Group, Name, Unary, call, item, numpy, size
from fuzz_attn.simulator.codegen.statements import Assign, If, Statement
from fuzz_attn.simulator.codegen.terms import Region, Scope, Term, Val, arm_of
from fuzz_attn.simulator.codegen.value_ranges import range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Block, Operation

_SPECULATION_LIMIT = 6


def _cheap(operation: Operation) -> bool:
    """Return whether running both arms costs less than separating the programs."""
    inner = [inner for region in operation.regions for inner in region[0].operations[:-1]]
    return len(inner) <= _SPECULATION_LIMIT and all(map(_scalar_arithmetic, inner))


def _scalar_arithmetic(operation: Operation) -> bool:
    dialect = operation.name.partition(".")[0]
    return dialect in ("arith", "math") and not any(
        result.type.shape or result.type.pointer for result in operation.results
    )


def _if(emitter: Emitter, operation: Operation) -> None:
    condition = emitter.array(emitter.operand(operation, 0))
    cover(emitter, "branch", condition)
    pointers = any(value.type.pointer for value in operation.results)
    if operation.results and not pointers and condition.varying and len(operation.regions) == 2 and _cheap(operation):
        _speculate(emitter, operation)
        return
    arms = [_arm(emitter, region[0], condition.varying) for region in operation.regions]
    results = _join_arms(emitter, operation, arms, condition.varying)
    emitter.start(operation)
    if condition.varying:
        _emit_varying(emitter, condition, arms, results)
    else:
        bodies = [arm.region.statements for arm in arms]
        emitter.add(If(item(emitter.read(condition)), *bodies))
    bind_all(emitter, results, operation.results, emitter.region)


def _speculate(emitter: Emitter, operation: Operation) -> None:
    """Emit both arms for all programs, and select their results."""
    for region in operation.regions:
        emitter.emit(region[0].operations[:-1])
    yielded = [region[0].operations[-1].operands for region in operation.regions]
    coverage, emitter.coverage = emitter.coverage, False
    for result, left, right in zip(operation.results, *yielded, strict=True):
        sides = [operation.operands[0], left, right]
        emitter.emit([Operation("arith.select", sides, [result], location=operation.location)])
    emitter.coverage = coverage


@dataclass(slots=True)
class _Arm:
    """One arm of an `if`: its region, and the values that it yields."""

    region: Region
    vals: list[Val]


def _arm(emitter: Emitter, block: Block, varying: bool) -> _Arm:
    operations = block.operations
    yields = bool(operations) and operations[-1].name == "scf.yield"
    scope = Scope(emitter.region.scope, emitter.fresh("lanes")) if varying else None
    with emitter.inside(arm_of(emitter.region, scope)) as region:
        emitter.emit(operations[:-1] if yields else operations)
        vals = [emitter.val(value) for value in operations[-1].operands] if yields else []
    return _Arm(region, vals)


def _join_arms(emitter: Emitter, operation: Operation, arms: list[_Arm], varying: bool) -> list[Carried]:
    """Return variables for the results, assigned at the end of each arm."""
    if not operation.results:
        return []
    layouts = []
    for arm in arms:
        with emitter.inside(arm.region):
            layouts.append([layout_of(emitter, val, varying) for val in arm.vals])
    joint = join_all(emitter, *layouts)
    if varying:
        joint = [layout.diverged() for layout in joint]
    results = carry_all(emitter, joint, operation.results)
    for number, arm in enumerate(arms):
        with emitter.inside(arm.region):
            start_carried(emitter, [one.of_arm(number) for one in results] if varying else results, arm.vals)
    return results


def _emit_varying(emitter: Emitter, condition: Term, arms: list[_Arm], results: list[Carried]) -> None:
    """Emit each arm for the programs that take it, if there are any."""
    test, count, rest = emitter.read(condition), emitter.fresh("n"), emitter.fresh("m")
    lanes = emitter.lanes
    emitter.add(Assign(count, call("int", numpy("count_nonzero", test))))
    taken_by_all, taken_by_none = Binary("==", count, size(lanes)), Unary("not ", count)
    for number, arm in enumerate(arms):
        scope = arm.region.scope
        some: list[Statement] = [taken(rest if number else test, scope, lanes)]
        if number:
            some.insert(0, Assign(rest, Unary("~", test)))
        entry = If(taken_by_none if number else taken_by_all, [entered(scope, lanes)], some)
        runs = Binary("!=", count, size(lanes)) if number else count
        emitter.add(If(runs, [entry, *arm.region.statements]))
    _blend(emitter, results, test, taken_by_all, taken_by_none)


def _blend(
    emitter: Emitter, results: list[Carried], test: Expression, taken_by_all: Expression, taken_by_none: Expression
) -> None:
    """Emit the results of all programs from those of both arms."""
    names = flat_names(results)
    if not names:
        return
    found = [one.range for one in results if one.range]
    first, second = ([one.of_arm(number) for one in results] for number in (0, 1))
    values: list[Expression] = [
        call("blend", test, left, right) for left, right in zip(flat_names(first), flat_names(second), strict=True)
    ]
    values += [
        range_call(ranges.union, left, right)
        for left, right in zip(_range_names(first), _range_names(second), strict=True)
    ]
    everything = [*names, *found]
    blended = unpacked(everything, Group(tuple(values)))
    from_second = unpacked(everything, Group((*flat_names(second), *_range_names(second))))
    from_first = unpacked(everything, Group((*flat_names(first), *_range_names(first))))
    emitter.add(If(taken_by_all, [from_first], [If(taken_by_none, [from_second], [blended])]))


def _range_names(carried: list[Carried]) -> list[Name]:
    return [one.range for one in carried if one.range]


HANDLERS: dict[str, Handler] = {"scf.if": _if}
