"""Simplification: makes a failing case simpler while it fails, as data, until nothing in it can be dropped.

A case is simpler as :mod:`fuzz_attn.engine.failures.simplicity` says: few features first, then plain types and heads,
then short sequences. Each step drops traits (all of them, halves, single ones), drops sequences, and then searches the
smallest lengths and numbers. Steps repeat until none makes a difference. A step only removes traits, or makes a
size smaller. So a case that does not have the trigger of a known failure never gets it, with one exception that the
caller rules out: pages of the usual size hold more keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec
from hypothesis.errors import InvalidArgument

from fuzz_attn.case import traits
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain, unpromised
from fuzz_attn.case.parts import FarAxis, Strides, without_far
from fuzz_attn.case.parts import Sequence as Tokens
from fuzz_attn.case.traits import FEATURES, KINDS
from fuzz_attn.engine.failures.simplicity import simplicity
from fuzz_attn.engine.messages import Order
from fuzz_attn.errors import CaseError
from fuzz_attn.properties.relations import RELATIONS, has_second_case, second_case
from fuzz_attn.strategies.compile_keys import check_key

Fails: TypeAlias = Callable[[Order], bool]
Change: TypeAlias = Callable[[AttentionCase], AttentionCase]
Resized: TypeAlias = Callable[[int], Tokens]

DENSE: Final = 64
"""Lengths up to here are all tried, since a failure may depend on a length modulo a tile or page."""
STEP, BESIDE = 16, (-2, -1, 0, 1, 2)
"""Beyond, those near multiples of a tile or page are tried."""


def simplify(order: Order, fails: Fails, domain: Domain) -> Order:
    """Return the simplest order of a domain that is found to fail.

    ``fails`` is called with each simpler order; what it returns true for is the best so far. It may raise to end the
    search.
    """
    return Simplification(order, fails, domain).run()


class Simplification:
    """The search for simpler orders; ``best`` is the simplest that failed so far."""

    def __init__(self, order: Order, fails: Fails, domain: Domain) -> None:
        self.best = order
        self._fails = fails
        self._domain = domain

    def run(self) -> Order:
        """Return the best order once nothing simplifies it further."""
        before = None
        while before != self.best:
            before = self.best
            self._drop_relation()
            self._drop_traits()
            self._drop_sequences()
            self._reduce_numbers()
            self._shorten()
        return self.best

    def _attempt(self, order: Order | None) -> bool:
        """Return whether an order is simpler than the best, lies in the domain, and fails; it is the best then."""
        if order is None or _simplicity(order) >= _simplicity(self.best) or not allowed(order, self._domain):
            return False
        failed = self._fails(order)
        if failed:
            self.best = order
        return failed

    def _drop_relation(self) -> None:
        """Drop the relation, else take its second launch as a case of its own."""
        if self.best.relation and not self._attempt(Order(self.best.case)):
            self._attempt(second_order(self.best))

    def _drop_traits(self) -> None:
        """Drop all traits at once, else each half of them, down to single ones."""
        waiting = [tuple(trait.without for trait in (*FEATURES, *KINDS) if trait.present(self.best.case))]
        while waiting:
            changes = waiting.pop()
            if not self._attempt(changed(self.best, *changes)) and len(changes) > 1:
                middle = len(changes) // 2
                waiting += [changes[middle:], changes[:middle]]

    def _drop_sequences(self) -> None:
        """Keep one sequence, else drop parts of the batch, down to single sequences."""
        count = len(self.best.case.sequences)
        if count > 1 and any(self._attempt(with_sequences(self.best, (index,))) for index in range(count)):
            return
        size = count // 2
        while size:
            start = 0
            while start < len(self.best.case.sequences):
                kept = (*range(start), *range(start + size, len(self.best.case.sequences)))
                if not (kept and self._attempt(with_sequences(self.best, kept))):
                    start += size
            size //= 2

    def _reduce_numbers(self) -> None:
        """Replace each number by the simplest that still fails."""
        for number in _NUMBERS:
            any(self._attempt(changed(self.best, change)) for change in number(self.best.case))

    def _shorten(self) -> None:
        """Search the smallest number of query tokens, and of keys, of each sequence."""
        for index in range(len(self.best.case.sequences)):
            for shorten in (_with_queries, _with_context, _with_queries_before):
                low, high, resized = shorten(self.best.case.sequences[index])
                self._search(low, high, partial(_with_sequence, self.best, index, resized))

    def _search(self, low: int, high: int, make: Callable[[int], Order | None]) -> None:
        """Search a smaller length that fails: the least one, then between passing and failing, then from below."""
        if high <= low or self._attempt(make(low)):
            return
        passing, failing = low, high
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if self._attempt(make(middle)):
                failing = middle
            else:
                passing = middle
        any(self._attempt(make(length)) for length in _lengths(low + 1, failing))


def _simplicity(order: Order) -> tuple[float, ...]:
    return simplicity(order.case, order.relation)


def allowed(order: Order, domain: Domain) -> bool:
    """Return whether a case lies in a domain and its relation holds."""
    if unpromised(order.case, domain):
        return False
    try:
        check_key(order.case.compile_key, domain=domain)
    except InvalidArgument:
        return False
    return order.relation is None or RELATIONS[order.relation].holds(order.case, domain)


def second_order(order: Order) -> Order | None:
    """Return the second launch of an order's relation as an order without a relation, None where no case is like it."""
    if order.relation is None or not has_second_case(order.relation):
        return None
    return changed(Order(order.case), partial(second_case, relation=order.relation))


def changed(order: Order, *changes: Change) -> Order | None:
    """Return an order with all changes of its case that are possible, None if none is."""
    case = order.case
    for change in changes:
        try:
            case = change(case)
        except CaseError:
            continue
    return None if case == order.case else msgspec.structs.replace(order, case=case)


def with_sequences(order: Order, kept: Sequence[int]) -> Order | None:
    """Return an order with some of its sequences; overrides move with theirs."""
    places = {old: new for new, old in enumerate(kept)}
    overrides = tuple(
        msgspec.structs.replace(override, sequence=places[override.sequence])
        for override in order.case.overrides
        if override.sequence in places
    )
    sequences = tuple(order.case.sequences[index] for index in kept)
    return changed(order, partial(replace, sequences=sequences, overrides=overrides))


def _with_queries(sequence: Tokens) -> tuple[int, int, Resized]:
    """Fewer query tokens of as many keys: the others become context."""
    return 1, sequence.query_len, lambda length: Tokens(length, sequence.seq_len - length)


def _with_context(sequence: Tokens) -> tuple[int, int, Resized]:
    return 0, sequence.context_len, lambda length: Tokens(sequence.query_len, length)


def _with_queries_before(sequence: Tokens) -> tuple[int, int, Resized]:
    """Fewer query tokens after as long a context."""
    return 1, sequence.query_len, lambda length: Tokens(length, sequence.context_len)


def _with_sequence(order: Order, index: int, resized: Resized, length: int) -> Order | None:
    sequences = list(order.case.sequences)
    sequences[index] = resized(length)
    return changed(order, partial(replace, sequences=tuple(sequences)))


def _lengths(low: int, high: int) -> Iterator[int]:
    """Yield the lengths worth a launch each."""
    edges = sorted({edge + beside for edge in range(DENSE, high + STEP, STEP) for beside in BESIDE})
    yield from range(low, min(high, DENSE))
    yield from (length for length in edges if max(low, DENSE) <= length < high)


SIMPLE_SIZES: Final = (16, 8, 32, 24, 4, 17, 15, 2, 1, 3, 33, 40, 48, 64, 63, 65, 72, 80, 96, 112, 120, 128, 160, 192)
GROUPS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32)
WINDOWS: Final = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65)


def _in_part(part: str, field: str, values: Iterable[object]) -> Callable[[AttentionCase], Iterator[Change]]:
    """Return a function that yields the changes of one field to each of some values."""

    def changes(case: AttentionCase) -> Iterator[Change]:
        for value in values:
            yield partial(_replace_in_part, part=part, field=field, value=value)

    return changes


def _replace_in_part(case: AttentionCase, part: str, field: str, value: object) -> AttentionCase:
    return replace(case, **{part: msgspec.structs.replace(getattr(case, part), **{field: value})})


def _head_sizes(case: AttentionCase) -> Iterator[Change]:
    for size in SIMPLE_SIZES:
        yield partial(traits.with_head_size, size=size)


def _page_sizes(case: AttentionCase) -> Iterator[Change]:
    """Yield changes of the page size, with as many keys as before or with as many pages."""
    for size in SIMPLE_SIZES:
        yield partial(_replace_in_part, part="pages", field="block_size", value=size)
        yield partial(traits.with_page_size, size=size)


def _fields(case: AttentionCase) -> Iterator[Change]:
    """Yield the changes of single fields of the case itself."""
    yield from (partial(replace, window=window) for window in WINDOWS if 0 < window < case.window)
    if case.softcap:
        yield partial(replace, softcap=1.0)


def _far_axes(case: AttentionCase) -> Iterator[Change]:
    """Yield the changes of each far axis to a near one."""
    yield from (partial(_with_near, name=name) for name in case.strides.far)


def _with_near(case: AttentionCase, name: FarAxis) -> AttentionCase:
    return replace(case, strides=without_far(case.strides, name))


def _padding_and_seed(case: AttentionCase) -> Iterator[Change]:
    if case.padded_tokens:
        yield partial(replace, padded_tokens=1)
    yield partial(replace, seed=0)


_NUMBERS: Final = (
    _in_part("heads", "num_kv_heads", (1, 2, 3, 4)),
    _in_part("heads", "num_queries_per_kv", GROUPS),
    _head_sizes,
    _page_sizes,
    _fields,
    _in_part("launch", "num_segments", (2, 3, 4)),
    _in_part("launch", "tile_size", (16, 32)),
    *(_in_part("strides", field, (0, 1)) for field in Strides.__struct_fields__ if field not in ("cache", "far")),
    _far_axes,
    *(_in_part("pages", field, (1,)) for field in ("shared_prefix", "spare_blocks", "extra_columns")),
    *(_in_part("scales", field, (1.0,)) for field in ("q", "k", "v", "out")),
    _padding_and_seed,
)
