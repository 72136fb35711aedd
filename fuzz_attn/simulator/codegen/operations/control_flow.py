"""Control flow: `scf.if`, by one arm, by both for the programs that take them, or by selection; loops; and selections.

A loop whose trip counts differ between programs runs them sorted by falling count, so that the programs still running
are always the first rows: leaving a loop costs a slice.
The programs whose condition of a `while` fails leave with the values that they forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuzz_attn.simulator.codegen.carried import (
    Carried,
    Layout,
    advance_carried,
    bind_all,
    carry_all,
    entered,
    fits,
    flat_names,
    join_all,
    layout_of,
    start_carried,
    taken,
    unpacked,
)
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, cover, elementwise, range_of, track_exactly
from fuzz_attn.simulator.codegen.operations.assertions import check_hints_on_arguments
from fuzz_attn.simulator.codegen.operations.memory_operations import emit_barrier
from fuzz_attn.simulator.codegen.source_tree import (
    ALL,
    NONE,
    Assign,
    Binary,
    Break,
    Do,
    Expression,
    For,
    Forever,
    From,
    Group,
    If,
    ListOf,
    Name,
    Statement,
    Unary,
    all_of,
    call,
    constant,
    dtype,
    function,
    index,
    infix,
    item,
    method,
    numpy,
    size,
)
from fuzz_attn.simulator.codegen.terms import (
    Region,
    RunRange,
    Scope,
    Term,
    Val,
    arm_of,
    broadcast_shape,
    loop_in,
    range_call,
)
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Block, Operation, Value

_SPECULATION_LIMIT = 6
TRIALS = 12
"""How often a loop is generated at most, until the layouts of its carried values hold what its body yields."""


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


def _for(emitter: Emitter, operation: Operation) -> None:
    bounds = [emitter.operand(operation, index) for index in range(3)]
    inits = [emitter.val(value) for value in operation.operands[3:]]
    varying = any(term.varying for term in bounds)
    emit_loop = _for_varying if varying else _for_uniform
    layouts = [_first_layout(emitter, init, varying) for init in inits]
    for _ in range(TRIALS):
        state = emitter.snapshot()
        carried = carry_all(emitter, layouts, operation.results)
        joint = join_all(emitter, layouts, emit_loop(emitter, operation, bounds, carried, inits))
        if varying:
            joint = [layout.diverged() for layout in joint]
        if joint == layouts:
            break
        emitter.rollback(state)
        layouts = joint
    bind_all(emitter, carried, operation.results, emitter.region)


def _first_layout(emitter: Emitter, init: Val, varying: bool) -> Layout:
    """Return the layout of the first trial.

    A tile of floats that starts as one number is an accumulator, which ends up with all its elements, and different
    ones for each program. So no trial is needed to find that out: the program of an attention kernel takes a fifth
    less time to generate.
    """
    layout = layout_of(emitter, init, varying)
    if init.type.is_float and init.term.literal is not None:
        return Layout(((init.type.shape, True),), layout.element)
    return layout


def _number(emitter: Emitter, term: Term) -> Expression:
    read = emitter.read(term)
    return read if term.literal is not None else item(read)


def _for_uniform(
    emitter: Emitter, operation: Operation, bounds: list[Term], carried: list[Carried], inits: list[Val]
) -> list[Layout]:
    block = operation.regions[0][0]
    start_carried(emitter, carried, inits)
    region = loop_in(emitter.region)
    counter, name, limits = emitter.fresh("t"), emitter.fresh("i"), emitter.fresh("r")
    low, high, step = (_number(emitter, term) for term in bounds)
    last = Binary("-", high, constant(1))
    emitter.add(Assign(limits, Group((low, last, constant(())))))
    element = block.arguments[0].type.element
    emitter.add_to(region, Assign(name, numpy("array", ListOf((counter,)), dtype(element))))
    emitter.define(block.arguments[0], Term(name, (), False, region, element, range=RunRange(limits)))
    yielded = emit_body(emitter, region, block, carried, block.arguments[1:], union=False, hints=operation)
    emitter.start(operation)
    trips = call("range", low, high, step)
    emitter.add(check_iterations(call("len", trips)), For(counter, trips, region.statements))
    return yielded


def check_iterations(count: Expression) -> Do:
    """Return the statement that ends a launch whose loop runs for too long."""
    return Do(call("check_iterations", count))


def emit_body(
    emitter: Emitter,
    region: Region,
    block: Block,
    carried: Sequence[Carried],
    arguments: Sequence[Value],
    *,
    union: bool,
    advanced: list[Carried] | None = None,
    hints: Operation | None = None,
) -> list[Layout]:
    """Emit the body of a loop, and return the layouts of what it yields.

    Its arguments are the values `carried`; it assigns what it yields to those `advanced` (default: the same) if they
    can hold it. `hints` is an operation whose hints on the arguments are checked.
    """
    advanced = list(carried) if advanced is None else advanced
    with emitter.inside(region):
        bind_all(emitter, carried, arguments, region)
        if hints is not None:
            check_hints_on_arguments(emitter, hints)
        if emitter.exchanges is not None and any(argument.type.shape for argument in arguments):
            emit_barrier(emitter)
        emitter.emit(block.operations[:-1])
        vals = [emitter.val(value) for value in block.operations[-1].operands]
        yielded = [layout_of(emitter, val) for val in vals]
        if all(fits(one.layout, layout, emitter) for one, layout in zip(advanced, yielded, strict=True)):
            advance_carried(emitter, advanced, vals, union)
    return yielded


def _for_varying(
    emitter: Emitter, operation: Operation, bounds: list[Term], carried: list[Carried], inits: list[Val]
) -> list[Layout]:
    outer = emitter.region
    block = operation.regions[0][0]
    start_carried(emitter, carried, inits)
    scope = Scope(outer.scope, emitter.fresh("lanes"))
    region = loop_in(outer, scope)
    counts, most, least, counter = (emitter.fresh(prefix) for prefix in "nmlt")
    leaving = _Leaving(emitter, flat_names(carried))
    low, high, step = (emitter.array(term) for term in bounds)
    limits = emitter.fresh("r")
    given = [emitter.read(term) for term in (low, high, step)]
    emitter.add(
        Assign(counts, call("trip_counts", *given)),
        unpacked([most, least], call("extremes", counts)),
        Assign(Group((leaving.ends, leaving.saved)), Group((NONE, ListOf()))),
        check_iterations(most),
        Assign(limits, range_call(ranges.loop, given[0], given[1])),
    )
    _induction(emitter, region, block.arguments[0], (low, step), counter, limits)
    yielded = emit_body(emitter, region, block, carried, block.arguments[1:], union=True, hints=operation)
    emitter.start(operation)
    sort = unpacked([leaving.order, leaving.ends], call("longest_first", counts))
    sorted_entry = taken(leaving.order, scope, outer.scope.lanes, leaving.variables)
    emitter.add(If(Binary("!=", most, least), [sort, sorted_entry], [entered(scope, outer.scope.lanes)]))
    leave = leaving.statement(scope, counter, least)
    emitter.add(For(counter, call("range", most), [leave, *region.statements]))
    if leaving.variables:
        emitter.add(leaving.restored())
    return yielded


class _Leaving:
    """How lanes leave a loop whose trip counts differ: the variables for it, and the statements."""

    def __init__(self, emitter: Emitter, variables: list[Name]) -> None:
        self.ends, self.order, self.saved = (emitter.fresh(prefix) for prefix in "eps")
        self.variables = variables

    def statement(self, scope: Scope, counter: Name, least: Name) -> If:
        """Return the statement at the start of an iteration: the lanes that do not run it are the last rows."""
        end = index(self.ends, counter)
        leaves = all_of([Binary(">=", counter, least), Binary("!=", end, size(scope.lanes))])
        left = Group(tuple(index(name, From(end)) for name in self.variables))
        everything = [scope.lanes, *scope.inner_names, *self.variables]
        return If(
            leaves,
            [Do(method(self.saved, "append", left)), unpacked(everything, call("head", end, *everything))],
        )

    def restored(self) -> If:
        """Return the statement behind the loop: values of all lanes in their first order."""
        values = call("restore", self.order, self.saved, Group(tuple(self.variables)))
        return If(Binary("is not", self.ends, NONE), [unpacked(self.variables, values)])


def _induction(
    emitter: Emitter, region: Region, argument: Value, terms: tuple[Term, Term], counter: Name, limits: Name
) -> None:
    low, step = terms
    name = emitter.fresh("i")
    element = argument.type.element
    passed = Binary("*", counter, emitter.read(step, region))
    emitter.add_to(region, Assign(name, Binary("+", emitter.read(low, region), passed)))
    varying = low.varying or step.varying
    emitter.define(argument, Term(name, (), varying, region, element, range=RunRange(limits)))


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
    (_emit_varying_loop if varying else _emit_uniform)(emitter, loop, count)
    return condition.varying, yielded, forwarded


def _start_forwarded(emitter: Emitter, forwarded: list[Carried], vals: list[Val], arguments: list[Value]) -> None:
    for one, argument in zip(forwarded, arguments, strict=True):
        if one.range is None and argument in emitter.tracked:
            one.range = emitter.fresh("r")
    start_carried(emitter, forwarded, vals)


def _emit_uniform(emitter: Emitter, loop: _Loop, count: Name) -> None:
    leave = If(Unary("not ", item(loop.test)), [Break()])
    emitter.add(_iteration(loop, count, [leave]))


def _emit_varying_loop(emitter: Emitter, loop: _Loop, count: Name) -> None:
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


def _and(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    left, right = (emitter.val(operand) for operand in operation.operands)
    if result.type.element != "i1" or len({term.shape for term in (*left.terms, *right.terms)}) == 1:
        term = elementwise(emitter, operation, infix("&"))
        if result in emitter.tracked:
            track_exactly(emitter, term, emitter.operand(operation, 0).range)
        return
    by_shape: dict[tuple[int, ...], Term] = {}
    for term in sorted((*left.terms, *right.terms), key=lambda term: term.region.depth):
        known = by_shape.get(term.shape)
        both = term if known is None else emitter.assign(infix("&"), [known, term], term.shape, "i1")
        by_shape[term.shape] = both
    emitter.define(result, *by_shape.values())


def _as_tile(emitter: Emitter, mask: Term, rank: int) -> Term:
    """Return a mask with the axes of the tiles between which it selects; a scalar one holds for whole tiles."""
    if len(mask.shape) == rank or not mask.varying:
        return mask
    return emitter.assign(lambda operand: index(operand, ALL, *[NONE] * rank), [mask], (1,) * rank, "i1")


def _select(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    if result.type.pointer:
        raise emitter.unsupported("arith.select of pointers")
    mask, left, right = (emitter.operand(operation, index) for index in range(3))
    cover(emitter, "select", mask)
    shape = broadcast_shape((term.shape for term in (mask, left, right)), len(result.type.shape))
    mask = _as_tile(emitter, emitter.array(mask), len(result.type.shape))
    element = result.type.element
    term = emitter.assign(function("select", dtype(element)), [mask, left, right], shape, element)
    emitter.define(result, term)
    if result in emitter.tracked:
        sides = [range_of(side).expression for side in (left, right)]
        chosen = range_call(ranges.choose, emitter.read(mask, term.region), term.region.scope.lanes, *sides)
        term.range = emitter.range_variable(chosen, term.region, clean=False)


HANDLERS: dict[str, Handler] = {
    "arith.andi": _and,
    "arith.select": _select,
    "scf.for": _for,
    "scf.while": _while,
    "scf.if": _if,
}
