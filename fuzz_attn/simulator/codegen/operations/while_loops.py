"""`scf.while`: the programs whose condition fails leave, with the values that they forward."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz_attn.simulator.codegen.carried import (
    Carried,
    Layout,
    bind_all,
    carry_all,
    entered,
    flat_names,
    join_all,
    layout_of,
    start_carried,
    unpacked,
)
from fuzz_attn.simulator.codegen.coverage import cover
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.operations.for_loops import TRIALS, check_iterations, emit_body
from fuzz_attn.simulator.codegen.regions import Region, Scope, loop_in
from fuzz_attn.simulator.codegen.terms import Val
from fuzz_attn.simulator.codegen.tree.expressions import (
    Binary,
    Expression,
    Group,
    ListOf,
    Name,
    Unary,
    call,
    constant,
    item,
    method,
    numpy,
    size,
)
from fuzz_attn.simulator.codegen.tree.statements import Assign, Break, Do, Forever, If, Statement
from fuzz_attn.ttir.ir import Operation, Value


def _while(emitter: Emitter, operation: Operation) -> None:
    inits = [emitter.val(value) for value in operation.operands]
    varying = False
    layouts = [layout_of(emitter, init) for init in inits]
    for _ in range(TRIALS):
        state = emitter.snapshot()
        diverges, yielded, forwarded = _trial(emitter, operation, layouts, inits, varying)
        joint = join_all(emitter, layouts, yielded)
        if diverges <= varying and joint == layouts:
            break
        emitter.rollback(state)
        varying = varying or diverges
        layouts = [layout.diverged() for layout in joint] if varying else joint
    bind_all(emitter, forwarded, operation.results, emitter.region)


@dataclass(slots=True)
class _Loop:
    """A `while` loop while it is emitted: the regions of its condition and its body, and what leaves it."""

    scope: Scope
    condition: Region
    body: Region
    test: Expression
    forwarded: list[Carried]


def _trial(
    emitter: Emitter, operation: Operation, layouts: list[Layout], inits: list[Val], varying: bool
) -> tuple[bool, list[Layout], list[Carried]]:
    outer = emitter.region
    before, after = operation.regions[0][0], operation.regions[1][0]
    carried = carry_all(emitter, layouts, before.arguments)
    start_carried(emitter, carried, inits)
    scope = Scope(outer.scope, emitter.fresh("lanes")) if varying else outer.scope
    first, second = loop_in(outer, scope), loop_in(outer, scope)
    last = before.operations[-1]
    with emitter.inside(first):
        bind_all(emitter, carried, before.arguments, first)
        emitter.emit(before.operations[:-1])
        condition = emitter.array(emitter.operand(last, 0))
        cover(emitter, "while", condition)
        vals = [emitter.val(value) for value in last.operands[1:]]
        shapes = [layout_of(emitter, val).released(outer) for val in vals]
        shapes = [layout.diverged() for layout in shapes] if varying else shapes
        forwarded = carry_all(emitter, shapes, operation.results)
        _start_forwarded(emitter, forwarded, vals, after.arguments)
        test = emitter.read(condition)
    yielded = emit_body(emitter, second, after, forwarded, after.arguments, union=True, advanced=carried)
    emitter.start(operation)
    loop = _Loop(scope, first, second, test, forwarded)
    count = emitter.fresh("n")
    emitter.add(Assign(count, constant(0)))
    (_emit_varying if varying else _emit_uniform)(emitter, loop, count)
    return condition.varying, yielded, forwarded


def _start_forwarded(emitter: Emitter, forwarded: list[Carried], vals: list[Val], arguments: list[Value]) -> None:
    for one, argument in zip(forwarded, arguments, strict=True):
        if one.range is None and argument in emitter.tracked:
            one.range = emitter.fresh("r")
    start_carried(emitter, forwarded, vals)


def _emit_uniform(emitter: Emitter, loop: _Loop, count: Name) -> None:
    leave = If(Unary("not ", item(loop.test)), [Break()])
    emitter.add(_iteration(loop, count, [leave]))


def _emit_varying(emitter: Emitter, loop: _Loop, count: Name) -> None:
    """Emit the loop that lanes leave one by one: `saved` holds for each group that left its positions and values."""
    outer_lanes, scope, test = emitter.lanes, loop.scope, loop.test
    names = flat_names(loop.forwarded)
    saved, positions, staying = (emitter.fresh(prefix) for prefix in "spe")
    everything = [positions, scope.lanes, *scope.inner_names, *names]
    leaving = [positions, *names]
    start = Group((numpy("arange", size(outer_lanes)), ListOf()))
    emitter.add(Assign(Group((positions, saved)), start), entered(scope, outer_lanes))
    all_leave = If(Unary("not ", staying), [Do(method(saved, "append", Group(tuple(leaving)))), Break()])
    some = call("take", Unary("~", test), *leaving)
    rest = unpacked(everything, call("take", test, *everything))
    some_leave = If(Binary("!=", staying, size(test)), [Do(method(saved, "append", some)), rest])
    staying_count = Assign(staying, numpy("count_nonzero", test))
    emitter.add(_iteration(loop, count, [staying_count, all_leave, some_leave]))
    if names:
        emitter.add(unpacked(names, call("collect", saved)))


def _iteration(loop: _Loop, count: Name, leave: list[Statement]) -> Forever:
    counted = [Assign(count, Binary("+", count, constant(1))), check_iterations(count)]
    return Forever([*loop.condition.statements, *leave, *loop.body.statements, *counted])


HANDLERS: dict[str, Handler] = {"scf.while": _while}
