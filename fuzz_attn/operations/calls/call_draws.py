"""Call draws: sequences of calls that are made of drawn cases, apart from their draws.

Most have two calls. The last one is the drawn case; the call before it is the same, has other numbers, is shorter or
lacks a feature, or is the case that was drawn before. In their turn come those after an error, those of two threads and
those whose lengths grow or shrink over a power of two.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final, Literal, TypeAlias

from fuzz_attn.errors import CaseError
from fuzz_attn.operations.calls.call_case import Call, CallSequence, Storage, numbered
from fuzz_attn.operations.operation import Lengths, Operation

FIRST_CASES: Final = 16
"""The first cases of a campaign are single ones: most bugs show there, and are shrunk faster."""
SHARE: Final = 1 / 50
"""The part of the cases that are sequences where a target is not known to keep anything between calls."""
SHARE_AT_FIRST, PATIENCE_AT_FIRST = 1 / 10, 7
"""That part at first; it halves with each so many sequences, which have shown what any sequence of their kind shows."""
SHARE_OF_KEEPING, PATIENCE = 1 / 4, 50
"""The same where the target is known to keep something."""
PURE: Final = "(lru_cache)"
"""How a cache of results without tensors is named: nearly all of them are of pure functions."""
MOST_PARTS: Final = 3
"""So many parts of a batch are made shorter to find out which earlier call a failure needs."""
Kind: TypeAlias = Literal["call", "error", "threads", "boundary"]
TURNS: Final[tuple[Kind, ...]] = (
    *("error", "call", "threads", "call", "call", "threads", "call"),
    *("error", "call", "threads", "call", "boundary", "threads", "call"),
)
"""The kinds of sequences in their turn: an earlier call that raises because a tensor is missing; calls that run in a
second thread in the middle of the one before; and lengths on both sides of a boundary."""
PAIRS: Final = 4
"""So many times two threads run in a sequence of a target that keeps something, each time at another line."""
BOUNDARIES: Final = tuple(2**power for power in range(7, 13))
"""Numbers of keys by which kernels choose tiles, splits and the size of buffers."""
IN_STREAMS: Final = 0.15
"""The part of them, on a GPU, whose last two calls are made in two streams, after the same calls in one."""
MOST_MISSING: Final = 8
REPEATED: Final = 0.2
"""The part of them whose last call is made once more."""
LINES: Final = (*range(1, 13), *range(14, 50, 3), 60, 90)
"""The lines of a target's own code at which that thread runs."""
_SEEDS: Final = 2**20


class CallDraws:
    """Makes a sequence of some of the drawn cases of a campaign; ``single`` is the operation of the cases.

    Calls run in two ``streams`` only where there are any.
    """

    def __init__(self, single: Operation, domain: Any, random: Random, *, streams: bool = False) -> None:
        self._single, self._domain, self._random, self._streams = single, domain, random, streams
        self._before: Any = None
        self.keeps: set[str] = set()
        """What the target is seen to keep between calls."""
        self._drawn = self._made = 0

    @property
    def share(self) -> float:
        """The part of the next cases that are sequences."""
        first, patience = (SHARE_OF_KEEPING, PATIENCE) if self._keeps else (SHARE_AT_FIRST, PATIENCE_AT_FIRST)
        return max(SHARE, first * math.pow(0.5, self._made / patience))

    @property
    def _keeps(self) -> bool:
        """Whether the target keeps more than what pure functions return."""
        return not all(name.endswith(PURE) for name in self.keeps)

    def sequence_of(self, case: Any) -> CallSequence | None:
        """Return a sequence that ends with a drawn case, None where it stays a case of its own."""
        before, self._before = self._before, case
        self._drawn += 1
        if self._drawn <= FIRST_CASES or self._random.random() >= self.share:
            return None
        self._made += 1
        if self._single.is_mostly_virtual(case):
            return None
        try:
            calls = self._calls(case, before)
            found = CallSequence(tuple(calls))
        except CaseError:
            return None
        fits = all(self._single.allows(call.case, None, self._domain) for call in found.calls)
        return found if fits else None

    def _calls(self, case: Any, before: Any) -> list[Call]:
        random, kind = self._random, TURNS[(self._made - 1) % len(TURNS)]
        if kind == "error":
            return [Call(case, raises=random.randint(1, MOST_MISSING)), Call(case)]
        if kind == "boundary":
            return self._over_boundary(case)
        makers = [self._repeated, self._renumbered, self._resized, self._reordered, self._without, self._after]
        weights = [2, 4, 2, 1, 1, 1]
        in_threads = kind == "threads"
        (maker,) = random.choices(makers[2:] if in_threads else makers, weights[2:] if in_threads else weights)
        earlier, storage = maker(case, before)
        if self._streams and random.random() < IN_STREAMS:
            # A kernel's first launch in a process may wait for all streams, so each call is made once before.
            first = Call(earlier), Call(case), Call(earlier)
            return [*first, Call(case, alongside=random.choice(LINES), stream=True)]
        if in_threads:
            lines = random.sample(LINES, PAIRS if self._keeps else 1)
            return [call for line in lines for call in (Call(earlier), Call(case, alongside=line))]
        calls = [Call(earlier), Call(case, storage)]
        if random.random() < REPEATED:
            again: Storage = random.choice(("again", "fresh"))
            calls.append(Call(case, again))
        return calls

    def _over_boundary(self, case: Any) -> list[Call]:
        """Return calls with one key less than a boundary, as many and one more, growing or shrinking."""
        boundaries = list(BOUNDARIES)
        self._random.shuffle(boundaries)
        for boundary in boundaries:
            with contextlib.suppress(CaseError):
                cases = [self._single.with_keys(case, boundary + beyond) for beyond in (-1, 0, 1)]
                step = self._random.choice((1, -1))
                return [Call(each) for each in cases[::step]]
        earlier, storage = self._resized(case, None)
        return [Call(earlier), Call(case, storage)]

    def _storage(self) -> Storage:
        return self._random.choice(("fresh", "contents", "address"))

    def _repeated(self, case: Any, before: Any) -> tuple[Any, Storage]:
        return case, self._random.choice(("again", "fresh"))

    def _renumbered(self, case: Any, before: Any) -> tuple[Any, Storage]:
        return numbered(case, self._random.randrange(_SEEDS)), self._storage()

    def _resized(self, case: Any, before: Any) -> tuple[Any, Storage]:
        """Return a shorter case, one token shorter or of any length, of a part of the batch."""
        parts = self._single.parts(case)
        if not parts:
            return self._renumbered(case, before)
        part, kinds = self._random.randrange(parts), list[Lengths]()
        while (lengths := self._single.shorter(case, part, len(kinds))) is not None:
            kinds.append(lengths)
        kinds = [each for each in kinds if each.low < each.high]
        if not kinds:
            return self._renumbered(case, before)
        lengths = self._random.choice(kinds)
        length = self._random.choice((lengths.high - 1, self._random.randrange(lengths.low, lengths.high)))
        return lengths.resized(length), self._random.choice(("fresh", "contents"))

    def _reordered(self, case: Any, before: Any) -> tuple[Any, Storage]:
        """Return the case with the parts of its batch in the reverse order."""
        return reversed_batch(self._single, case), self._storage()

    def _without(self, case: Any, before: Any) -> tuple[Any, Storage]:
        """Return the case without one of its traits, of the same compile key."""
        present = [aspect for aspect in self._single.aspects.traits if aspect.present(case)]
        self._random.shuffle(present)
        for aspect in present:
            try:
                without = aspect.without(case)
            except CaseError:
                continue
            if without.compile_key == case.compile_key:
                return without, self._storage()
        return self._renumbered(case, before)

    def _after(self, case: Any, before: Any) -> tuple[Any, Storage]:
        """Return the case that was drawn before, where it has the same compile key."""
        if before is None or before.compile_key != case.compile_key or self._single.is_mostly_virtual(before):
            return self._resized(case, before)
        return before, self._storage()


def reversed_batch(single: Operation, case: Any) -> Any:
    """Return a case with the parts of its batch in the reverse order; raises :class:`CaseError` where it cannot."""
    return single.with_parts(case, tuple(reversed(range(single.parts(case)))))


def suspects(single: Operation, case: Any, earlier: Sequence[Any]) -> Iterator[CallSequence]:
    """Yield sequences that may show what a case showed after others in its process, and not alone.

    ``earlier`` are cases of its compile key that ran before it, the last one first.
    """
    yield CallSequence((Call(case), Call(case, "again")))
    other = numbered(case, case.seed ^ 1)
    yield CallSequence((Call(other), Call(case, "contents")))
    yield CallSequence((Call(other), Call(case)))
    yield CallSequence((Call(case), Call(case)))
    for similar in (*_similar(single, case), *earlier):
        yield CallSequence((Call(similar), Call(case)))
        yield CallSequence((Call(similar), Call(case, "contents")))
    if len(earlier) > 1:
        yield CallSequence((*map(Call, reversed(earlier)), Call(case)))


def _similar(single: Operation, case: Any) -> Iterator[Any]:
    """Yield cases of the same sizes as a whole, in another order or with one part a little shorter."""
    parts = single.parts(case)
    if parts > 1:
        with contextlib.suppress(CaseError):
            yield reversed_batch(single, case)
    for part in range(min(parts, MOST_PARTS)):
        number = 0
        # Each of a part's lengths: with a query token less, the number of keys may stay what it is.
        while (lengths := single.shorter(case, part, number)) is not None:
            number += 1
            if lengths.low < lengths.high:
                with contextlib.suppress(CaseError):
                    yield lengths.resized(lengths.high - 1)
