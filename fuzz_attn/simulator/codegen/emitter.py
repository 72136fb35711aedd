"""The state of code generation: names, placement and lookup of what holds each value.

Pure lines move out of loops by themselves: a line is placed in the outermost loop region that knows its operands. What
depends on nothing but numbers in the IR is a constant of the program; what depends on scalar arguments and the grid as
well is made once for a launch. The same text is never computed twice where the first result is seen.

A region runs for the lanes of its scope, and values from outside follow through the scope's captures. Sums of integers,
pointers and conjunctions of masks stay lists of terms, because a tile address is nearly always (row offset) + (column
offset), of which memory can make use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from fuzz_attn.errors import UnsupportedOperation
from fuzz_attn.simulator.codegen.terms import Literal, Region, Scope, Snapshot, Term, Val, broadcast_shape, literal_text
from fuzz_attn.simulator.findings import Location
from fuzz_attn.simulator.frontend.ir import Operation, Value
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.simulator.runtime.ranges import HIGH, LOW

Handler = Callable[["Emitter", Operation], None]


# These look at a number of Python's themselves.
_WANTS_NUMBERS = ("divide(",)
_OF_TWO = re.compile(r"(?:np\.\w+\(\{0\}, \{1\}\)|\{0\} [-+*/<>=!&|^]+ \{1\})$")
"""Templates of numpy's own operations on two arrays."""


def fits_32_bits(text: str) -> bool:
    """Return whether a range is known to fit when the code is generated."""
    if not text.startswith("("):
        return False
    low, high, _ = eval(text)  # noqa: S307 - our own text
    return bool(low >= LOW and high <= HIGH)


class Emitter:
    """Names, placement and lookup; the operations themselves are emitted by the `emit_*` modules."""

    def __init__(self, handlers: Mapping[str, Handler], tracked: set[Value], coverage: bool) -> None:
        self._handlers = handlers
        self.root_scope = Scope(None, "lanes")
        self.constants = Region(None, Scope(None, "EVERY"), depth=-2, shared=True)
        self.launch = Region(None, Scope(None, "EVERY"), depth=-1, shared=True)
        self.region = Region(None, self.root_scope)
        self.values: dict[Value, Val] = {}
        self.tracked = tracked
        self.coverage = coverage
        self.sites: list[Location] = []
        self.coverage_sites: list[tuple[str, Location, bool]] = []
        self.memories: dict[str, int] = {}
        self.location = Location()
        self.operation: Operation | None = None
        self.cache: dict[tuple[object, ...], Term] = {}
        self.range_homes: dict[str, Region] = {}
        self.clean_ranges: set[str] = set()
        self._shared: dict[str, str] = {}
        self._count = 0

    def emit(self, operations: Sequence[Operation]) -> None:
        """Emit operations one after the other into the current region."""
        for operation in operations:
            self.location = operation.location
            handler = self._handlers.get(operation.name)
            if handler is None:
                raise self.unsupported(operation.name)
            handler(self, operation)

    # Names and lines.

    def fresh(self, prefix: str = "v") -> str:
        """Return a name that nothing else has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, text: str) -> None:
        """Add a line to the current region."""
        self.region.lines.append(text)

    def site(self) -> int:
        """Return a number for the operation's source line, by which the running code names it."""
        if not self.sites or self.sites[-1] != self.location:
            self.sites.append(self.location)
        return len(self.sites) - 1

    def unsupported(self, what: str) -> UnsupportedOperation:
        """Return the error for what the current operation cannot do."""
        return UnsupportedOperation(what, self.location)

    # Placement.

    def place(self, terms: Iterable[Term]) -> Region:
        """Return the outermost region in which all terms are known: a shared one, or the outermost loop."""
        deepest = max((term.region.depth for term in terms if term.literal is None), default=self.constants.depth)
        if deepest < 0:
            return self.launch if deepest == self.launch.depth else self.constants
        region = self.region
        while region.loop and region.parent is not None and deepest < region.depth:
            region = region.parent
        return region

    def name(self, term: Term, region: Region | None = None) -> str:
        """Return the variable that holds `term` for the lanes of `region` (default: the current one)."""
        region = region or self.region
        return self._resolve(term.name, term.region.scope, region.scope) if term.varying else term.name

    def _resolve(self, name: str, home: Scope, scope: Scope) -> str:
        if scope is home:
            return name
        known = scope.captures.get(name)
        if known is None:
            outer = name if scope.parent is None else self._resolve(name, home, scope.parent)
            known = scope.captures[name] = (outer, self.fresh("c"), home.lanes)
        return known[1]

    def assign(
        self,
        template: str,
        terms: Sequence[Term],
        shape: tuple[int, ...],
        element: str,
        *,
        varying: bool | None = None,
        affine: bool = False,
        extra: Sequence[Term] = (),
    ) -> Term:
        """Return a new variable for `template`, `{0}`, `{1}` ... being the terms and `{lanes}` the programs.

        `extra` terms do not occur in the template but keep the line inside of their regions.
        """
        region = self.place([*terms, *extra])
        if region is self.constants and "run." in template:
            region = self.launch
        if region.shared and "{lanes}" in template:
            region = self.region
        plain = template.startswith(_WANTS_NUMBERS)
        names = [
            self.number(term) if term.literal is not None and not plain else self.name(term, region) for term in terms
        ]
        if not region.shared and _OF_TWO.match(template):
            names = self._without_axes(terms, names)
        if varying is None:
            varying = any(term.varying for term in terms)
        text = template.format(*names, lanes=region.scope.lanes)
        return Term(self._computed(text, region), shape, varying, region, element, affine=affine)

    def _without_axes(self, terms: Sequence[Term], names: list[str]) -> list[str]:
        """Return the names with a scalar of the launch as an array of no axes, where it meets one that has some."""
        if all(term.bare for term in terms):
            return names
        scalar = [term.bare and term.region.shared and term.literal is None for term in terms]
        return [
            self._computed(f"{name}.reshape(())", term.region) if chosen else name
            for name, term, chosen in zip(names, terms, scalar, strict=True)
        ]

    def _computed(self, text: str, region: Region) -> str:
        """Return the variable that holds a pure expression in a region; one that is there already serves again."""
        if region.shared:
            name = self._shared.get(text)
            if name is None:
                name = self._shared[text] = self.fresh()
                region.lines.append(f"{name} = {text}")
            return name
        known = self.cache.get(("text", text))
        if known is not None and known.region.scope is region.scope and known.region.encloses(region):
            return known.name
        name = self.fresh()
        region.lines.append(f"{name} = {text}")
        self.cache["text", text] = Term(name, (), False, region, "")
        return name

    def number(self, term: Term) -> str:
        """Return a literal term's number as a constant of the program: numpy takes an array of no axes fastest."""
        return self._computed(f"np.array({term.name}, DTYPES['{term.element}'])", self.constants)

    def note(self, template: str, term: Term, others: Sequence[Term] = ()) -> None:
        """Return a line about `term` in the region that defines it."""
        names = [self.name(other, term.region) for other in (term, *others)]
        term.region.lines.append(template.format(*names, lanes=term.region.scope.lanes))

    # Values.

    def val(self, value: Value) -> Val:
        """Return what stands for an SSA value."""
        return self.values[value]

    def define(self, value: Value, *terms: Term, base: str | None = None, groups: tuple[Val, ...] = ()) -> Val:
        """Let terms stand for an SSA value."""
        val = self.values[value] = Val(value.type, terms, base, groups)
        return val

    def literal(self, value: Literal, shape: tuple[int, ...], element: str) -> Term:
        """Return a number as a term."""
        text = literal_text(value)
        term = Term(text, (1,) * len(shape), False, self.constants, element, literal=value)
        if element in ("i8", "i16", "i32", "i64"):
            term.range = f"({int(value)}, {int(value)}, ())"
        return term

    def single(self, val: Val) -> Term:
        """Return the value as one array: sums are added up, conjunctions are evaluated."""
        if len(val.terms) == 1 and (not val.type.pointer or val.terms[0].element == "i64"):
            return val.terms[0]
        if val.type.pointer:
            raise self.unsupported("a pointer used as a number")
        key = ("single", val)
        known = self.cache.get(key)
        if known is not None and known.region.encloses(self.region):
            return known
        sign = " & " if val.type.element == "i1" else " + "
        ordered = sorted(val.terms, key=lambda term: term.region.depth)
        shape = broadcast_shape((term.shape for term in ordered), len(val.type.shape))
        template = sign.join(f"{{{i}}}" for i in range(len(ordered)))
        term = self.assign(template, ordered, shape, val.type.element)
        term.range = val.range
        if val.range and val.type.element == "i32":
            self._check_sum(term, ordered)
        self.cache[key] = term
        return term

    def _check_sum(self, term: Term, parts: list[Term]) -> None:
        """Emit the exact range of a 32-bit sum of terms where their ranges say that it may wrap."""
        names = [self.name(part, term.region) for part in parts]
        assert term.range is not None
        given = [term.name, term.region.scope.lanes, str(self.site()), term.range, *names]
        term.range = self.within(term, term.range, f"ranges.wrapped_sum({', '.join(given)})")

    # Companion ranges: the text of a tuple of numbers, or the name of a variable.

    def is_clean(self, text: str) -> bool:
        """Return whether a range can have no taints."""
        return text.startswith(("(", "run.", "ranges.EVERYTHING")) or text in self.clean_ranges

    def ranged(self, template: str, operands: Sequence[str], region: Region) -> str:
        """Return the range that `template` makes of others, in `region` at the latest; that of numbers is a number."""
        if all(text.startswith("(") for text in operands):
            low, high, _ = eval(template.format(*operands), {"ranges": ranges})  # noqa: S307 - our own text
            return f"({low}, {high}, ())"
        homes = [self._home(text) for text in operands]
        depth = max(home.depth if home is not None else 0 for home in homes)
        home = region if depth == 0 else self.launch if depth == self.launch.depth else self.constants
        name = self.fresh("r")
        home.lines.append(f"{name} = {template.format(*operands)}")
        self.ranged_as(name, home, all(map(self.is_clean, operands)))
        return name

    def ranged_as(self, name: str, region: Region, clean: bool) -> None:
        """Note where the variable of a range is made, and whether it can have no taints."""
        if region.shared:
            self.range_homes[name] = region
        if clean:
            self.clean_ranges.add(name)

    def _home(self, text: str) -> Region | None:
        if text.startswith(("(", "ranges.EVERYTHING")):
            return self.constants
        return self.launch if text.startswith("run.") else self.range_homes.get(text)

    def within(self, term: Term, name: str, exact: str) -> str:
        """Return the range of a 32-bit term: `name`, or what the expression `exact` finds where that leaves 32 bits."""
        if fits_32_bits(name):
            return name
        result = self.fresh("r")
        fits = f"{name}[0] >= {LOW} and {name}[1] <= {HIGH}"
        term.region.lines.append(f"{result} = {name} if {fits} else {exact}")
        self.ranged_as(result, term.region, clean=False)
        return result

    def operand(self, operation: Operation, index: int) -> Term:
        """Return an operand of an operation as one array."""
        return self.single(self.values[operation.operands[index]])

    def array(self, term: Term) -> Term:
        """Return the term as an array and not a number of Python's."""
        if term.literal is None:
            return term
        name = self._computed(f"np.array([{term.name}], DTYPES['{term.element}'])", self.constants)
        return Term(name, term.shape, False, self.constants, term.element, range=term.range)

    def ranked(self, term: Term) -> Term:
        """Return the term as an array with all the tile's axes."""
        term = self.array(term)
        if not term.bare or not term.shape:
            return term
        return self.assign(f"{{0}}.reshape({(1,) * (len(term.shape) + 1)})", [term], term.shape, term.element)

    def spread(self, term: Term, shape: tuple[int, ...]) -> Term:
        """Return the term with its lazily broadcast tile axes spread to `shape`."""
        if term.shape == shape:
            return self.array(term)
        term = self.ranked(term)
        return self.assign(f"spread({{0}}, {shape})", [term], shape, term.element)

    def exact(self, term: Term, shape: tuple[int, ...], varying: bool) -> str:
        """Source of the term's array with exactly this tile shape, and a row for each lane if `varying`."""
        if (
            term.literal is None
            and term.shape == shape
            and term.varying == varying
            and (term.varying or not term.bare or not shape)
        ):
            return self.name(term)
        count = f"{self.region.scope.lanes}.size" if varying else "1"
        return f"rows({self.name(term)}, {count}, {shape}, DTYPES['{term.element}'])"

    # Rollback, for loops whose carried values take several trials.

    def snapshot(self) -> Snapshot:
        """Return all that the lines to come may change outside of their own region."""
        lines, captures = [], []
        region: Region | None = self.region
        while region is not None:
            lines.append((region, region.lines[:]))
            captures.append((region.scope, dict(region.scope.captures)))
            region = region.parent
        return Snapshot(lines, captures, dict(self.cache), dict(self.values), len(self.sites), len(self.coverage_sites))

    def rollback(self, state: Snapshot) -> None:
        """Forget what was emitted since the snapshot."""
        for region, lines in state.lines:
            region.lines[:] = lines
        for scope, captures in state.captures:
            scope.captures = captures
        self.cache = dict(state.cache)
        self.values = dict(state.values)
        del self.sites[state.sites :]
        del self.coverage_sites[state.coverage_sites :]
