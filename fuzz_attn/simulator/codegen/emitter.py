"""The state of code generation: names, placement and lookup of what holds each value; and what handlers share.

Pure statements move out of loops by themselves: each is placed in the outermost loop region that knows its operands.
What depends only on numbers of the IR is a constant of the program; what also depends on scalar arguments and the grid
is computed once for a launch. The same expression is never computed twice where the first result is visible.

A region runs for the lanes of its scope, and values from outside follow through the scope's captures. Sums of integers,
pointers and conjunctions of masks stay lists of terms: a tile address is nearly always (row offset) + (column offset),
and memory uses that.

Handlers share the emission of elementwise operations, of value ranges, by which 32-bit overflow is found, and of
records of masks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fuzz_attn.errors import SimulatorError, UnsupportedOperation
from fuzz_attn.simulator.codegen.program import COMPLETE, COMPLETE_SINGLE
from fuzz_attn.simulator.codegen.source_tree import (
    NO_ORIGIN,
    Assign,
    Binary,
    Builder,
    Conditional,
    Do,
    Expression,
    If,
    ListOf,
    Literal,
    Name,
    Origin,
    Statement,
    call,
    combines_two_arrays,
    constant,
    dtype,
    index,
    joined,
    method,
    number,
    numpy,
    size,
)
from fuzz_attn.simulator.codegen.terms import (
    CONSTANTS,
    EVERYTHING,
    LAUNCH,
    Capture,
    KnownRange,
    RangeFunction,
    Region,
    RunRange,
    Scope,
    Term,
    Val,
    ValueRange,
    broadcast_shape,
    known,
    range_call,
    test_of_32_bits,
)
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.simulator.runtime.float_formats import CONTAINER
from fuzz_attn.ttir.ir import Location, Operation, Value

Handler = Callable[["Emitter", Operation], None]

EVERY = Name("EVERY")
"""The lanes of what is the same for all programs."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a trial of a loop's body is undone to."""

    statements: list[tuple[Region, list[Statement]]]
    captures: list[tuple[Scope, dict[Name, Capture]]]
    cache: dict[Hashable, Term]
    values: dict[Value, Val]
    sites: int
    coverage_sites: int


class Emitter:
    """Names, placement and lookup. The handlers in `operations` emit the operations themselves.

    `elements` has the element type of each tensor argument. `undefined` says that an operation was emitted whose result
    may be undefined. In a kernel in which a load may follow a store, `exchanges` says of an operation whether threads
    may meet at a barrier in it.
    """

    def __init__(self, handlers: Mapping[str, Handler], tracked: set[Value], coverage: bool) -> None:
        self._handlers = handlers
        self.constants = Region(None, Scope(None, EVERY), depth=CONSTANTS, shared=True)
        self.launch = Region(None, Scope(None, EVERY), depth=LAUNCH, shared=True)
        self.region = Region(None, Scope(None, Name("lanes")))
        self.values: dict[Value, Val] = {}
        self.elements: dict[Name, str] = {}
        self.tracked = tracked
        self.coverage = coverage
        self.sites: list[Location] = []
        self.coverage_sites: list[tuple[str, Location, bool]] = []
        self.origin = NO_ORIGIN
        self.undefined = False
        self.exchanges: Callable[[Operation], bool] | None = None
        self.cache: dict[Hashable, Term] = {}
        self._shared: dict[Expression, Name] = {}
        self._count = 0

    def emit(self, operations: Sequence[Operation]) -> None:
        """Emit operations one after the other into the current region.

        Raises UnsupportedOperation for one that has no handler, or whose handler meets a type or attribute that it
        does not know.
        """
        for operation in operations:
            self.start(operation)
            handler = self._handlers.get(operation.name)
            if handler is None:
                raise self.unsupported(operation.name)
            for result in operation.results:
                if result.type.element not in CONTAINER:
                    raise self.unsupported(f"{operation.name} of the type {result.type.element}")
            try:
                handler(self, operation)
            except SimulatorError:
                raise
            except Exception as error:
                what = f"{operation.name} ({type(error).__name__}: {error})"
                raise UnsupportedOperation(what, operation.location) from error

    def start(self, operation: Operation) -> None:
        """Let the statements to come belong to an operation."""
        self.origin = Origin(operation.name, operation.location)

    # Names and statements.

    def fresh(self, prefix: str = "v") -> Name:
        """Return a name that nothing else has."""
        self._count += 1
        return Name(f"{prefix}{self._count}")

    def add(self, *statements: Statement) -> None:
        """Add statements to the current region."""
        self.add_to(self.region, *statements)

    def add_to(self, region: Region, *statements: Statement) -> None:
        """Add statements to a region; those that have no origin get the current operation's."""
        for statement in statements:
            self._set_origin(statement)
        region.statements += statements

    def _set_origin(self, statement: Statement) -> None:
        if statement.origin is NO_ORIGIN:
            statement.origin = self.origin
            for block in statement.blocks:
                for inner in block:
                    self._set_origin(inner)

    @contextmanager
    def inside(self, region: Region) -> Iterator[Region]:
        """Make a region the current one for the time of a `with` block."""
        outer, self.region = self.region, region
        try:
            yield region
        finally:
            self.region = outer

    @property
    def lanes(self) -> Name:
        """The lanes of the current region."""
        return self.region.scope.lanes

    def site(self) -> Expression:
        """Return a number for the operation's source line, by which the running code names it."""
        if not self.sites or self.sites[-1] != self.origin.location:
            self.sites.append(self.origin.location)
        return constant(len(self.sites) - 1)

    def unsupported(self, what: str) -> UnsupportedOperation:
        """Return the error for what the current operation cannot do."""
        return UnsupportedOperation(what, self.origin.location)

    # Placement.

    def place(self, terms: Iterable[Term]) -> Region:
        """Return the outermost region in which all terms are known: a shared one, or the outermost loop."""
        deepest = max((term.region.depth for term in terms if term.literal is None), default=CONSTANTS)
        if deepest < 0:
            return self.launch if deepest == LAUNCH else self.constants
        region = self.region
        while region.loop and region.parent is not None and deepest < region.depth:
            region = region.parent
        return region

    def read(self, term: Term, region: Region | None = None) -> Expression:
        """Return the expression that holds `term` for the lanes of `region` (default: the current one)."""
        if not term.varying:
            return term.expression
        assert isinstance(term.expression, Name)
        return self._resolve(term.expression, term.region.scope, (region or self.region).scope)

    def _resolve(self, name: Name, home: Scope, scope: Scope) -> Name:
        if scope is home:
            return name
        capture = scope.captures.get(name)
        if capture is None:
            outer = name if scope.parent is None else self._resolve(name, home, scope.parent)
            capture = scope.captures[name] = Capture(outer, self.fresh("c"), home.lanes)
        return capture.inner

    def assign(
        self,
        build: Builder,
        terms: Sequence[Term],
        shape: tuple[int, ...],
        element: str,
        *,
        varying: bool | None = None,
        affine: bool = False,
        plain_numbers: bool = False,
        per_launch: bool = False,
    ) -> Term:
        """Return a new variable for what `build` makes of the terms.

        Numbers are passed as arrays, or as they are if `plain_numbers`. `per_launch` says that the expression depends
        on the launch even if its terms do not.
        """
        region = self.place(terms)
        if per_launch and region is self.constants:
            region = self.launch
        operands = [
            self.number(term) if term.literal is not None and not plain_numbers else self.read(term, region)
            for term in terms
        ]
        expression = build(*operands)
        if not region.shared and combines_two_arrays(expression, operands):
            expression = build(*self._without_axes(terms, operands))
        if varying is None:
            varying = any(term.varying for term in terms)
        return Term(self._computed(expression, region), shape, varying, region, element, affine=affine)

    def _without_axes(self, terms: Sequence[Term], operands: list[Expression]) -> list[Expression]:
        """Return the operands with a scalar of the launch as an array of no axes, where it meets one that has some."""
        if all(term.bare for term in terms):
            return operands
        scalar = [term.bare and term.region.shared and term.literal is None for term in terms]
        return [
            self._computed(method(operand, "reshape", constant(())), term.region) if chosen else operand
            for operand, term, chosen in zip(operands, terms, scalar, strict=True)
        ]

    def _computed(self, expression: Expression, region: Region) -> Name:
        """Return the variable that holds a pure expression in a region; one that is there already serves again."""
        if region.shared:
            name = self._shared.get(expression)
            if name is None:
                name = self._shared[expression] = self.fresh()
                self.add_to(region, Assign(name, expression))
            return name
        seen = self.cache.get(expression)
        if seen is not None and seen.region.scope is region.scope and seen.region.encloses(region):
            assert isinstance(seen.expression, Name)
            return seen.expression
        name = self.fresh()
        self.add_to(region, Assign(name, expression))
        self.cache[expression] = Term(name, (), False, region, "")
        return name

    def number(self, term: Term) -> Name:
        """Return a literal term's number as a constant of the program: numpy takes an array of no axes fastest."""
        return self._computed(numpy("array", term.expression, dtype(term.element)), self.constants)

    def cached(self, key: Hashable, make: Callable[[], Term]) -> Term:
        """Return the term made for a key before, if it is visible here, or make it now."""
        term = self.cache.get(key)
        if term is None or not term.region.encloses(self.region):
            term = self.cache[key] = make()
        return term

    # Values.

    def val(self, value: Value) -> Val:
        """Return what stands for an SSA value."""
        return self.values[value]

    def define(self, value: Value, *terms: Term, base: Name | None = None, groups: tuple[Val, ...] = ()) -> Val:
        """Let terms stand for an SSA value."""
        val = self.values[value] = Val(value.type, terms, base, groups)
        return val

    def literal(self, value: Literal, shape: tuple[int, ...], element: str) -> Term:
        """Return a number as a term."""
        term = Term(number(value), (1,) * len(shape), False, self.constants, element, literal=value)
        if element in ("i8", "i16", "i32", "i64"):
            term.range = KnownRange(int(value), int(value))
        return term

    def single(self, val: Val) -> Term:
        """Return the value as one array: sums are added up, conjunctions are evaluated."""
        if len(val.terms) == 1 and (not val.type.pointer or val.terms[0].element == "i64"):
            return val.terms[0]
        if val.type.pointer:
            raise self.unsupported("a pointer used as a number")
        return self.cached(("single", val), lambda: self._combined(val))

    def _combined(self, val: Val) -> Term:
        sign = "&" if val.type.element == "i1" else "+"
        ordered = sorted(val.terms, key=lambda term: term.region.depth)
        shape = broadcast_shape((term.shape for term in ordered), len(val.type.shape))
        term = self.assign(lambda *operands: joined(sign, list(operands)), ordered, shape, val.type.element)
        term.range = val.range
        if val.range and val.type.element == "i32":
            self._check_sum(term, val.range, ordered)
        return term

    def _check_sum(self, term: Term, found: ValueRange, parts: list[Term]) -> None:
        """Emit the exact range of a 32-bit sum of terms where their ranges say that it may wrap."""
        operands = [self.read(part, term.region) for part in parts]
        lanes, site = term.region.scope.lanes, self.site()
        exact = range_call(ranges.wrapped_sum, term.expression, lanes, site, found.expression, *operands)
        term.range = self.within(term, found, exact)

    # Value ranges.

    def ranged(self, function: RangeFunction, operands: Sequence[ValueRange], region: Region) -> ValueRange:
        """Return the range that a function makes of others, computed in `region` at the latest."""
        return known(function, operands) or self.new_range(
            lambda *given: range_call(function, *given), operands, region
        )

    def new_range(self, build: Builder, operands: Sequence[ValueRange], region: Region) -> RunRange:
        """Return a new variable for a range made of others, in `region` or, where possible, before all programs."""
        depth = max(operand.depth for operand in operands)
        home = region if depth == 0 else self.launch if depth == LAUNCH else self.constants
        clean = all(operand.clean for operand in operands)
        return self.range_variable(build(*(operand.expression for operand in operands)), home, clean)

    def range_variable(self, expression: Expression, region: Region, clean: bool) -> RunRange:
        """Return a new variable of a region for a range."""
        name = self.fresh("r")
        self.add_to(region, Assign(name, expression))
        return RunRange(name, clean, region.depth if region.shared else 0)

    def within(self, term: Term, guess: ValueRange, exact: Expression) -> ValueRange:
        """Return the range of a 32-bit term: `guess`, or what `exact` computes where the guess leaves 32 bits."""
        if guess.fits_32_bits:
            return guess
        chosen = Conditional(guess.expression, test_of_32_bits(guess), exact)
        return self.range_variable(chosen, term.region, clean=False)

    def operand(self, operation: Operation, index: int) -> Term:
        """Return an operand of an operation as one array."""
        return self.single(self.values[operation.operands[index]])

    def array(self, term: Term) -> Term:
        """Return the term as an array and not a number of Python's."""
        if term.literal is None:
            return term
        one = numpy("array", ListOf((term.expression,)), dtype(term.element))
        name = self._computed(one, self.constants)
        return Term(name, term.shape, False, self.constants, term.element, range=term.range)

    def ranked(self, term: Term) -> Term:
        """Return the term as an array with all the tile's axes."""
        term = self.array(term)
        if not term.bare or not term.shape:
            return term
        shape = constant((1,) * (len(term.shape) + 1))
        return self.assign(lambda operand: method(operand, "reshape", shape), [term], term.shape, term.element)

    def spread(self, term: Term, shape: tuple[int, ...]) -> Term:
        """Return the term with its lazily broadcast tile axes spread to `shape`."""
        if term.shape == shape:
            return self.array(term)
        term = self.ranked(term)
        return self.assign(lambda operand: call("spread", operand, constant(shape)), [term], shape, term.element)

    def exact(self, term: Term, shape: tuple[int, ...], varying: bool) -> Expression:
        """Return the term's array with exactly this tile shape, and a row for each lane if `varying`."""
        if (
            term.literal is None
            and term.shape == shape
            and term.varying == varying
            and (term.varying or not term.bare or not shape)
        ):
            return self.read(term)
        return call("rows", self.read(term), self.row_count(varying), constant(shape), dtype(term.element))

    def row_count(self, varying: bool) -> Expression:
        """Return the number of rows of an array."""
        return size(self.lanes) if varying else constant(1)

    # Rollback, for loops whose carried values take several trials.

    def snapshot(self) -> Snapshot:
        """Return all that the statements to come may change outside of their own region."""
        regions = list(self.region.outwards())
        return Snapshot(
            [(region, region.statements[:]) for region in regions],
            [(region.scope, dict(region.scope.captures)) for region in regions],
            dict(self.cache),
            dict(self.values),
            len(self.sites),
            len(self.coverage_sites),
        )

    def rollback(self, state: Snapshot) -> None:
        """Forget what was emitted since the snapshot."""
        for region, statements in state.statements:
            region.statements[:] = statements
        for scope, captures in state.captures:
            scope.captures = captures
        self.cache = dict(state.cache)
        self.values = dict(state.values)
        del self.sites[state.sites :]
        del self.coverage_sites[state.coverage_sites :]


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


def rounded(build: Builder, element: str) -> Builder:
    """Return the builder with the rounding that arithmetic in a narrow format needs."""
    if element not in ("bf16", "f16"):
        return build
    return lambda *operands: call(f"round_{element}", build(*operands))


def elementwise(
    emitter: Emitter, operation: Operation, build: Builder, *, arrays: bool = False, plain_numbers: bool = False
) -> Term:
    """Emit an expression over all operands of an operation and define its result.

    `arrays` makes an array of each operand, for functions that look at an operand's bits. `plain_numbers` passes
    numbers as they are.
    """
    terms = [emitter.operand(operation, index) for index in range(len(operation.operands))]
    if arrays or all(term.literal is not None for term in terms):
        terms = [emitter.array(term) for term in terms]
    result = operation.results[0]
    shape = broadcast_shape((term.shape for term in terms), len(result.type.shape))
    term = emitter.assign(build, terms, shape, result.type.element, plain_numbers=plain_numbers)
    emitter.define(result, term)
    return term


def full(emitter: Emitter, operation: Operation, index: int) -> Term:
    """Return an operand with nothing lazily broadcast."""
    return emitter.ranked(emitter.spread(emitter.operand(operation, index), operation.operands[index].type.shape))


_SEEN, _SLOTS = Name("seen"), Name("slots")


def cover(emitter: Emitter, kind: str, *factors: Term) -> None:
    """Emit the record of a mask, if coverage is on, to run while the mask is not yet complete.

    The mask is the conjunction of factors that do not share an axis. The record stands where the mask is used: a mask
    that is known before a loop says nothing if the loop never runs. What is decided when the kernel is compiled is no
    mask.
    """
    if not emitter.coverage or all(factor.literal is not None for factor in factors):
        return
    slot = index(_SLOTS, constant(len(emitter.coverage_sites)))
    several = not all(factor.scalar for factor in factors)
    emitter.coverage_sites.append((kind, emitter.origin.location, several))
    complete = constant(COMPLETE if several else COMPLETE_SINGLE)
    outcomes = [emitter.read(emitter.array(factor)) for factor in factors]
    missing = Binary("!=", Binary("&", index(_SEEN, slot), complete), complete)
    emitter.add(If(missing, [Do(call("cover", _SEEN, slot, *outcomes))]))


def factors_of(emitter: Emitter, mask: Val) -> list[Term]:
    """Return a conjunction as factors that do not share an axis: the whole of it is larger than they are together."""
    groups: list[list[Term]] = []
    for term in mask.terms:
        sharing = [group for group in groups if any(_share_an_axis(term, other) for other in group)]
        groups = [group for group in groups if group not in sharing]
        groups.append([*(other for group in sharing for other in group), term])
    if len(groups) == 1:
        return [emitter.single(mask)]
    return [emitter.single(Val(mask.type, tuple(group))) for group in groups]


def _share_an_axis(left: Term, right: Term) -> bool:
    return any(one != 1 != other for one, other in zip(left.shape, right.shape, strict=True))
