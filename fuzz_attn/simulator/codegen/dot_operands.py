"""Dots of a kernel: what each multiplies, traced back through the IR to loads and exponentials."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import msgspec

from fuzz_attn.simulator.codegen.tracking import sources_of, walk
from fuzz_attn.simulator.findings import UNKNOWN_LOCATION, Location
from fuzz_attn.simulator.frontend.ir import Block, Function, Operation, Value

_BITS: Final = {"f64": 64, "f32": 32, "bf16": 16, "f16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
_LOADS: Final = frozenset({"tt.load", "tt.descriptor_load"})
_PRODUCTS: Final = frozenset({"arith.mulf", "arith.divf"})
_CASTS: Final = frozenset({"arith.truncf", "arith.extf", "tt.fp_to_fp"})
_SELECTIONS: Final = ("select", "bitcast", "maximumf", "maxnumf", "minimumf", "minnumf")
_PLACES: Final = ("bitcast", "broadcast", "clampf", "expand_dims", "reshape", "trans", "join", "split", "cat")
_MOVES: Final = frozenset([f"arith.{name}" for name in _SELECTIONS] + [f"tt.{name}" for name in _PLACES])
"""Operations that choose or place elements and round none."""
_FLOW: Final = frozenset({"scf.for", "scf.if", "scf.while"})
_ENDS: Final = frozenset({"arith.constant", "tt.splat", "tt.reduce"})
"""Operations behind which nothing is of interest: numbers that a whole tile or row shares."""
_THROUGH: Final = _PRODUCTS | _CASTS | _MOVES


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
