"""Value ranges of the integers that may reach an address, by which 32-bit overflow is found."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Term
from fuzz_attn.simulator.codegen.tree.expressions import Expression
from fuzz_attn.simulator.codegen.tree.value_ranges import EVERYTHING, RangeFunction, ValueRange, range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Value


def range_of(term: Term) -> ValueRange:
    """Return the range of a term; that of an untracked one is unknown."""
    return term.range or EVERYTHING


def track(emitter: Emitter, term: Term, function: RangeFunction, operands: Sequence[ValueRange]) -> ValueRange:
    """Emit the range of a term from the ranges of its operands."""
    found = term.range = emitter.ranged(function, operands, term.region)
    return found


def track_exactly(emitter: Emitter, term: Term, source: ValueRange | None = None) -> None:
    """Emit a range found by looking at the elements, with the taints of `source`."""
    more = [source.expression] if source else []
    exact = range_call(ranges.exact, emitter.read(term, term.region), *more)
    term.range = emitter.range_variable(exact, term.region, clean=source is None or source.clean)


def track_result(emitter: Emitter, result: Value) -> None:
    """Emit the exact range of a result, without taints, if it is tracked."""
    if result in emitter.tracked:
        track_exactly(emitter, emitter.val(result).term)


def track_wrapped(emitter: Emitter, term: Term, kind: Expression, operands: Sequence[Term], guess: ValueRange) -> None:
    """Emit the exact range of a 32-bit result where `guess` leaves 32 bits; elements that wrapped are tainted."""
    left, right = (emitter.read(operand, term.region) for operand in operands)
    lanes, site = term.region.scope.lanes, emitter.site()
    exact = range_call(ranges.wrapped, kind, left, right, term.expression, lanes, site, guess.expression)
    term.range = emitter.within(term, guess, exact)
