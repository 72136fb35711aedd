"""Kernel arithmetic: what the IR of one kernel says of how it rounds.

That is what each dot multiplies, traced back through the IR to loads and exponentials, and whether the kernel divides
by the softmax denominator once, after all sums. Each kernel is one of these, or its IR does not clearly say:

- ``last``: exponentials of scores less their maximum reach their dots with V undivided. The sums of these dots are only
  rescaled by exponentials, then divided by the sum of the exponentials, and stored. No other float is stored.
- ``later``: as above, but the sums and the denominators are stored undivided, for another kernel to merge.
- ``merging``: it multiplies loaded sums and loaded denominators by exponentials, adds both up, divides and stores.
- ``nothing``: it computes no exponential and no logarithm.

A wrong conclusion would make a false alarm. So each operation on the way must be one that is listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Final, Literal, TypeAlias

import msgspec

from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Block, Function, Location, Operation, Value
from fuzz_attn.ttir.value_graph import FLOW, ValueGraph, chosen, reduces, reduces_rows, sources_of, walk

_BITS: Final = {"f64": 64, "f32": 32, "bf16": 16, "f16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
_CASTS: Final = frozenset({"arith.truncf", "arith.extf", "tt.fp_to_fp"})
_LOADS: Final = frozenset({"tt.load", "tt.descriptor_load"})
_PRODUCTS: Final = frozenset({"arith.mulf", "arith.divf"})
_SELECTIONS: Final = ("select", "bitcast", "maximumf", "maxnumf", "minimumf", "minnumf")
_PLACES: Final = ("bitcast", "broadcast", "clampf", "expand_dims", "reshape", "trans", "join", "split", "cat")
_OPERAND_MOVES: Final = frozenset([f"arith.{name}" for name in _SELECTIONS] + [f"tt.{name}" for name in _PLACES])
"""Operations that choose or place elements and round none."""
_FLOW: Final = frozenset({"scf.for", "scf.if", "scf.while"})
_ENDS: Final = frozenset({"arith.constant", "tt.splat", "tt.reduce"})
"""Operations behind which nothing is of interest: numbers that a whole tile or row shares."""
_THROUGH: Final = _PRODUCTS | _CASTS | _OPERAND_MOVES


class Rounding(msgspec.Struct, frozen=True):
    """An operation whose result is rounded to a type narrower than float32, and where it is."""

    element: str
    location: Location


class Operand(msgspec.Struct, frozen=True):
    """What a dot multiplies, as far as the IR says it.

    ``loaded`` has the element type of each load of a tile that it comes from, and ``loops`` the number of loops around
    the innermost of them. ``exponential`` says whether it comes from an exponential, ``scaled`` whether it was
    multiplied or divided on the way. ``clear`` is False where it comes through an operation that this module does not
    follow; then the rest may be incomplete.
    """

    element: str = ""
    loaded: tuple[str, ...] = ()
    loops: int = 0
    exponential: bool = False
    scaled: bool = False
    roundings: tuple[Rounding, ...] = ()
    clear: bool = False


class Dot(msgspec.Struct, frozen=True):
    """A dot: its operands, the element type of its sums, how it multiplies float32 in Triton's words, and its line.

    ``precision`` is empty where the operands are not float32.
    """

    left: Operand = Operand()
    right: Operand = Operand()
    total: str = ""
    precision: str = ""
    location: Location = UNKNOWN_LOCATION


def input_precision(operation: Operation) -> str:
    """Return how a dot multiplies float32 operands, in Triton's words; empty for other operands."""
    if operation.name != "tt.dot" or operation.operands[0].type.element != "f32":
        return ""
    return operation.attributes.named.get("inputPrecision", "ieee")


def dots_of(function: Function) -> tuple[Dot, ...]:
    """Return the dots of a kernel, in the order of its text, equal ones once."""
    operations = [each for each in walk(function.blocks) if each.name == "tt.dot"]
    if not operations:
        return ()
    tracer = _Tracer(function)
    found = (
        Dot(
            tracer.traced(operation.operands[0]),
            tracer.traced(operation.operands[1]),
            operation.results[0].type.element,
            input_precision(operation),
            operation.location,
        )
        for operation in operations
    )
    return tuple(dict.fromkeys(found))


def largest_operand(function: Function) -> int:
    """Return the bytes of the largest second operand of a dot, which a GPU needs in shared memory as a whole."""
    operands = [each.operands[1].type for each in walk(function.blocks) if each.name == "tt.dot"]
    return max((prod(each.shape) * _BITS.get(each.element, 0) // 8 for each in operands), default=0)


class _Tracer:
    """Follows values of one kernel back to where they come from."""

    def __init__(self, function: Function) -> None:
        self._sources = sources_of(function, _THROUGH)
        self._made: dict[Value, tuple[Operation, int]] = {
            result: (operation, loops)
            for operation, loops in _with_loops(function.blocks, 0)
            for result in operation.results
        }
        self._parameters = set(function.parameters)

    def traced(self, value: Value) -> Operand:
        """Return what a dot's operand comes from."""
        made = [self._made[found] for found in self._slice(value) if found in self._made]
        names = {operation.name for operation, _ in made}
        loads = [(operation, loops) for operation, loops in made if operation.name in _LOADS]
        followed = _THROUGH | _FLOW | _ENDS | _LOADS
        return Operand(
            element=value.type.element,
            loaded=tuple(sorted(load.results[0].type.element for load, _ in loads)),
            loops=max((loops for _, loops in loads), default=0),
            exponential=any(is_exponential(operation) for operation, _ in made),
            scaled=bool(names & _PRODUCTS),
            roundings=tuple(_rounding(operation) for operation, _ in made if _rounds(operation)),
            clear=all(operation.name in followed or is_exponential(operation) for operation, _ in made),
        )

    def _slice(self, value: Value) -> list[Value]:
        """Return the tiles that a value comes from, itself first; scalars end the search."""
        found = {value: None}
        pending = [value]
        while pending:
            current = pending.pop()
            made = self._made.get(current)
            if made is not None and (is_exponential(made[0]) or made[0].name in _ENDS):
                continue
            for source in self._sources.get(current, []):
                if source.type.shape and source not in found:
                    found[source] = None
                    pending.append(source)
        return list(found)


def _with_loops(blocks: list[Block], loops: int) -> Iterator[tuple[Operation, int]]:
    """Yield all operations with the number of loops around each."""
    for block in blocks:
        for operation in block.operations:
            yield operation, loops
            for region in operation.regions:
                yield from _with_loops(region, loops + (operation.name in ("scf.for", "scf.while")))


def is_exponential(operation: Operation) -> bool:
    """Return whether an operation computes exponentials."""
    called = operation.name in ("tt.extern_elementwise", "tt.elementwise_inline_asm")
    return operation.name in ("math.exp", "math.exp2") or (called and _calls_exponential(operation.text))


def _calls_exponential(text: str) -> bool:
    return "ex2.approx" in text or "__nv_exp" in text or "__nv_fast_exp" in text


def _rounds(operation: Operation) -> bool:
    """Return whether the result is rounded to a type narrower than float32."""
    result = _BITS.get(operation.results[0].type.element, 64)
    if operation.name in _PRODUCTS:
        return result < 32
    return operation.name in _CASTS and result <= min(16, _BITS.get(operation.operands[0].type.element, 64))


def _rounding(operation: Operation) -> Rounding:
    return Rounding(operation.results[0].type.element, operation.location)


Kind: TypeAlias = Literal["", "last", "later", "merging", "nothing"]
_State: TypeAlias = Literal["sum", "quotient", "rounded"]
"""Of a tile on its way to a store: a sum of products, its quotient, its quotient in a narrower type."""

_ADD: Final = frozenset({"arith.addf"})
_MAXIMUM: Final = frozenset({"arith.maximumf", "arith.maxnumf"})
_LIMITS: Final = _MAXIMUM | {"arith.minimumf", "arith.minnumf", "tt.clampf"}
_DIVISIONS: Final = frozenset({"arith.divf", "tt.precise_divf"})
_SPREAD: Final = frozenset(f"tt.{name}" for name in ("broadcast", "expand_dims", "reshape", "trans", "splat"))
_MOVES: Final = _SPREAD | {"arith.select"}
_SCALED: Final = _SPREAD | {"arith.mulf"}
_STORES: Final = frozenset({"tt.store", "tt.descriptor_store", "tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_store"})
_LOGARITHMS: Final = ("math.log", "__nv_log", "__nv_fast_log", "lg2.approx")
_TINY: Final = 2.0**-25
"""Added to a count in float32, it changes nothing."""


_AFTER: Final[dict[tuple[_State, str], _State]] = {
    **{("quotient", name): "rounded" for name in _CASTS},
    **{("quotient", name): "quotient" for name in _LIMITS},
    ("rounded", "tt.bitcast"): "rounded",
    ("rounded", "arith.bitcast"): "rounded",
}
"""What an operation without other tiles makes of a quotient."""


class Normalisation(msgspec.Struct, frozen=True):
    """How a kernel normalises, as far as its IR says, and the line where it divides or stores its sums."""

    kind: Kind = ""
    location: Location = UNKNOWN_LOCATION


def normalisation_of(function: Function, dots: tuple[Dot, ...]) -> Normalisation:
    """Return how a kernel with these dots normalises."""
    graph = ValueGraph(function)
    if any(name in f"{each.name} {each.text}" for each in graph.operations for name in _LOGARITHMS):
        return Normalisation()
    if not any(map(is_exponential, graph.operations)):
        return Normalisation("" if dots else "nothing")
    return _of_attention(graph, dots) if dots else _of_merging(graph)


def _of_attention(graph: ValueGraph, dots: tuple[Dot, ...]) -> Normalisation:
    weighted = [each for each in graph.operations if each.name == "tt.dot" and _weights_of(graph, each)]
    if not weighted or not all(map(_is_plain, dots)) or not all(_reaches_one(graph, each) for each in weighted):
        return Normalisation()
    paths = _Paths(graph, {each.results[0] for each in weighted}, lambda value: _is_denominator(graph, value))
    if paths.end_as("quotient", "rounded") and not paths.other_floats():
        return Normalisation("last", paths.divisions[0].location)
    others = paths.other_floats()
    if paths.end_as("sum") and any(_is_denominator(graph, value) for value in others) and _are_float32(others):
        return Normalisation("later", next(iter(paths.stored)).location)
    return Normalisation()


def _of_merging(graph: ValueGraph) -> Normalisation:
    parts = {each.results[0] for each in graph.operations if _is_weighted_load(graph, each)}
    paths = _Paths(graph, parts, lambda value: _adds_up(graph, value, parts), reduced=True)
    if paths.end_as("quotient", "rounded") and not paths.other_floats():
        return Normalisation("merging", paths.divisions[0].location)
    return Normalisation()


def _are_float32(values: Iterable[Value]) -> bool:
    return all(value.type.element == "f32" for value in values)


def _is_plain(dot: Dot) -> bool:
    """Return whether a dot is one of q and K, or one of unscaled exponentials and V, and sums in float32."""
    weights, values = (dot.left, dot.right) if dot.left.exponential else (dot.right, dot.left)
    if not (weights.clear and values.clear) or values.exponential or dot.total != "f32":
        return False
    loaded = len(values.loaded) == 1 or (len(set(values.loaded)) == 1 and not values.scaled)
    return not weights.exponential or (not weights.scaled and not weights.loaded and loaded)


def _weights_of(graph: ValueGraph, dot: Operation) -> list[Operation]:
    """Return the exponentials that a dot multiplies."""
    ends = [end for operand in dot.operands[:2] for end in graph.traced(operand, _MOVES | _CASTS)[1]]
    return [end for end in ends if end is not None and is_exponential(end)]


def _reaches_one(graph: ValueGraph, dot: Operation) -> bool:
    """Return whether the largest weight of a row is exactly 1: the weights are relative to its maximum.

    It must be the maximum of the very scores that are used. Where the weights are masked, these scores must be masked
    too: a hidden score may be larger.
    """
    passed = [each for operand in dot.operands[:2] for each in graph.traced(operand, _MOVES | _CASTS)[0]]
    masked = any(each.name == "arith.select" for each in passed)
    return all(_is_relative(graph, each.operands[0], masked=masked) for each in _weights_of(graph, dot))


def _is_relative(graph: ValueGraph, exponent: Value, *, masked: bool) -> bool:
    ends = [end for end in graph.traced(exponent, _SCALED)[1] if end is not None and end.name != "arith.constant"]
    if len(ends) != 1 or ends[0].name != "arith.subf":
        return False
    scores, maximum = ends[0].operands
    through = _MOVES | _LIMITS | {"arith.mulf"}
    maxima = [end for end in graph.traced(maximum, through)[1] if end is not None and reduces_rows(end, _MAXIMUM)]
    if not any(_multiples(graph, scores) & _multiples(graph, each.operands[0]) for each in maxima):
        return False
    steps = graph.traced(scores, _SCALED | _ADD | {"arith.select"})[0]
    return not masked or any(each.name == "arith.select" for each in steps)


def _multiples(graph: ValueGraph, value: Value) -> set[Value]:
    """Return a value and those of which it is a multiple, or a factor of one."""
    passed, ends = graph.traced(value, _SCALED)
    tiles = {result for each in (*passed, *ends) if each is not None for result in each.results}
    return {value} | {each for each in tiles if graph.constant(each) is None and each.type.shape}


def _is_factor(graph: ValueGraph, value: Value) -> bool:
    """Return whether a factor is made of exponentials, or is one number for all rows."""
    passed, ends = graph.traced(value, _MOVES | {"arith.mulf"})
    exponentials = all(end is not None and (is_exponential(end) or _is_mask(graph, end)) for end in ends)
    multiplied = [each for each in passed if each.name == "arith.mulf"]
    if exponentials and not any(number != 1.0 for each in multiplied for number in graph.constants_of(each)):
        return True
    return _is_scale(graph, value)


def _is_mask(graph: ValueGraph, end: Operation) -> bool:
    """Return whether an operation makes the constant 0 or 1."""
    return end.name == "arith.constant" and graph.constant(end.results[0]) in (0.0, 1.0)


def _is_scale(graph: ValueGraph, value: Value) -> bool:
    """Return whether a factor is one number for all rows, loaded or passed as such, or a constant."""
    passed, ends = graph.traced(value, _SPREAD | _DIVISIONS | {"arith.mulf", "arith.extf"})
    known = [end for end in ends if end is not None]
    if any(end.name not in _LOADS | {"arith.constant"} for end in known):
        return False
    made = [*(each for each in passed if each.name not in _SPREAD), *(end for end in known if end.name in _LOADS)]
    return not any(result.type.shape for each in made for result in each.results)


def _is_denominator(graph: ValueGraph, value: Value) -> bool:
    """Return whether a value is the sum of the exponentials of a row, in float32 and rescaled by exponentials only."""
    passed, ends = graph.traced(value, _MOVES | _LIMITS | _ADD | {"arith.mulf"})
    if not any(_sums_exponentials(graph, end) for end in ends) or not _counts(graph, passed):
        return False
    return all(
        end is not None and (is_exponential(end) or _is_start(graph, end) or _sums_exponentials(graph, end))
        for end in ends
    )


def _is_start(graph: ValueGraph, end: Operation) -> bool:
    """Return whether an operation makes a constant that a denominator may start from, or that replaces one of 0."""
    number = graph.constant(end.results[0]) if end.name == "arith.constant" else None
    return number is not None and (number == 1.0 or abs(number) <= _TINY)


def _counts(graph: ValueGraph, passed: list[Operation]) -> bool:
    """Return whether a count stays exact: all is float32, and no constant that matters is added or multiplied."""
    return all(_are_float32(each.results) and _keeps_count(graph, each) for each in passed)


def _keeps_count(graph: ValueGraph, operation: Operation) -> bool:
    numbers = list(graph.constants_of(operation))
    if operation.name == "arith.addf":
        return all(abs(number) <= _TINY for number in numbers)
    return operation.name != "arith.mulf" or all(number == 1.0 for number in numbers)


def _sums_exponentials(graph: ValueGraph, operation: Operation | None) -> bool:
    if operation is None or not reduces_rows(operation, _ADD) or not _are_float32(operation.results):
        return False
    ends = graph.traced(operation.operands[0], _MOVES | _CASTS)[1]
    known = all(end is not None and (is_exponential(end) or _is_mask(graph, end)) for end in ends)
    return known and any(end is not None and is_exponential(end) for end in ends)


def _is_weighted_load(graph: ValueGraph, operation: Operation) -> bool:
    """Return whether an operation multiplies a loaded tile of float32 by exponentials below a maximum."""
    if operation.name != "arith.mulf":
        return False
    first, second = operation.operands
    return any(_is_load(graph, one) and _is_weight(graph, other) for one, other in ((first, second), (second, first)))


def _is_load(graph: ValueGraph, value: Value) -> bool:
    ends = [end for end in graph.traced(value, _MOVES)[1] if end is None or not _is_mask(graph, end)]
    return len(ends) == 1 and ends[0] is not None and ends[0].name in _LOADS and _are_float32(ends[0].results)


def _is_weight(graph: ValueGraph, value: Value) -> bool:
    """Return whether a value is an exponential of what lies below a maximum, or masked."""
    ends = [end for end in graph.traced(value, _MOVES)[1] if end is None or not _is_mask(graph, end)]
    if len(ends) != 1 or ends[0] is None or not is_exponential(ends[0]):
        return False
    through = _MOVES | _LIMITS | {"arith.mulf", "arith.subf"}
    return any(reduces(end, _MAXIMUM) for end in graph.traced(ends[0].operands[0], through)[1])


def _adds_up(graph: ValueGraph, value: Value, parts: set[Value]) -> bool:
    """Return whether a value is the sum over one of these tiles."""
    passed, ends = graph.traced(value, _MOVES | _ADD)
    sums = [end for end in ends if end is not None and end.name != "arith.constant"]
    return (
        len(sums) == 1
        and all(end is not None for end in ends)
        and reduces(sums[0], _ADD)
        and _counts(graph, passed)
        and _is_masked(graph, sums[0].operands[0], parts)
    )


def _is_masked(graph: ValueGraph, value: Value, parts: set[Value]) -> bool:
    """Return whether a value is one of these tiles, or what a mask leaves of it."""
    while value not in parts:
        made = graph.maker(value)
        if made is None or made.name not in _MOVES:
            return False
        value = chosen(made)[0]
    return True


class _Paths:
    """The ways of some sums to the stores, through known operations only.

    ``stored`` has the state of each tile that a store gets, ``divisions`` the divisions by a denominator. Where they
    are ``reduced``, the sum over a tile is a sum as well.
    """

    def __init__(
        self, graph: ValueGraph, sums: set[Value], is_denominator: Callable[[Value], bool], *, reduced: bool = False
    ) -> None:
        self.stored: dict[Operation, _State] = {}
        self.divisions: list[Operation] = []
        self._graph = graph
        self._is_denominator = is_denominator
        self._reduced = reduced
        self._states: dict[Value, _State] = {}
        self._beside: list[tuple[Value, _State, bool]] = []
        """What is added to a tile, or selected beside it, and must be as one; any constant too if True."""
        for value in sums:
            made = graph.maker(value)
            self._beside += [(each, "sum", False) for each in (made.operands[2:] if made and not reduced else [])]
        self._pending: list[tuple[Value, _State]] = [(value, "sum") for value in sums]
        self._known = bool(sums) and self._all_followed() and all(map(self._fits, self._beside))

    def end_as(self, *states: _State) -> bool:
        """Return whether the sums are stored, and in these states only; a quotient needs a division."""
        divided = bool(self.divisions) or "sum" in states
        return self._known and divided and bool(self.stored) and all(each in states for each in self.stored.values())

    def other_floats(self) -> list[Value]:
        """Return the float tiles that are stored and are none of these."""
        stores = [each for each in self._graph.operations if each.name in _STORES and each not in self.stored]
        return [value for each in stores for value in each.operands if value.type.is_float]

    def _all_followed(self) -> bool:
        while self._pending:
            value, state = self._pending.pop()
            known = self._states.get(value)
            if known == state:
                continue
            if known is not None:
                return False
            self._states[value] = state
            self._beside += [(source, state, False) for source in self._graph.flows_from(value)]
            self._pending += [(target, state) for target in self._graph.flows_to.get(value, [])]
            if not all(self._pass(user, value, state) for user in self._graph.users.get(value, [])):
                return False
        return True

    def _fits(self, beside: tuple[Value, _State, bool]) -> bool:
        value, state, any_constant = beside
        number = self._graph.constant(value)
        return self._states.get(value) == state or (number is not None if any_constant else number == 0.0)

    def _pass(self, user: Operation, value: Value, state: _State) -> bool:
        """Follow a tile through one operation; return whether it is known what becomes of it."""
        if user.name in FLOW or user.name == "arith.cmpf":
            return True
        if user.name in ("tt.store", "tt.descriptor_store"):
            self.stored[user] = state
            return True
        after = self._after(user, value, state)
        if after is None:
            return user.name in _DIVISIONS and value is user.operands[1] and self._is_denominator(value)
        self._pending.append((user.results[0], after))
        return True

    def _after(self, user: Operation, value: Value, state: _State) -> _State | None:
        """Return the state of an operation's result, None where it is not known."""
        if user.name in _MOVES:
            self._beside += [(other, state, True) for other in chosen(user) if other is not value]
            return state if value in chosen(user) else None
        if user.name in ("arith.mulf", *_DIVISIONS):
            return self._after_factor(user, value, state)
        return self._after_sum(user, value) if state == "sum" else _AFTER.get((state, user.name))

    def _after_sum(self, user: Operation, value: Value) -> _State | None:
        if user.name == "arith.addf":
            self._beside += [(other, "sum", False) for other in user.operands if other is not value]
            return "sum"
        added = user.name == "tt.dot" and value not in user.operands[:2]
        return "sum" if added or (self._reduced and reduces(user, _ADD)) else None

    def _after_factor(self, user: Operation, value: Value, state: _State) -> _State | None:
        first, second = user.operands
        divides = user.name in _DIVISIONS
        if state == "rounded" or first is second or (divides and value is not first):
            return None
        other = second if value is first else first
        if state == "sum" and (self._is_denominator(other) if divides else self._is_reciprocal(other)):
            self.divisions.append(user)
            return "quotient"
        if _is_scale(self._graph, other) or (state == "sum" and not divides and _is_factor(self._graph, other)):
            return state
        return None

    def _is_reciprocal(self, value: Value) -> bool:
        """Return whether a value is 1 divided by a denominator."""
        ends = self._graph.traced(value, _SPREAD)[1]
        made = ends[0] if len(ends) == 1 else None
        if made is None or made.name not in _DIVISIONS or self._graph.constant(made.operands[0]) != 1.0:
            return False
        return self._is_denominator(made.operands[1])


class KernelArithmetic(msgspec.Struct, frozen=True):
    """What the dots of a kernel multiply, and how it normalises; the default says nothing."""

    dots: tuple[Dot, ...] = ()
    normalisation: Normalisation = Normalisation()


def arithmetic_of(function: Function) -> KernelArithmetic:
    """Return the arithmetic of a kernel."""
    dots = dots_of(function)
    return KernelArithmetic(dots, normalisation_of(function, dots))
