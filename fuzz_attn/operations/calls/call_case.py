"""Call case: several calls of a target as one case, how each gets its memory, and the aspects of such a sequence.

Sequences are made of drawn cases, apart from their draws.

A sequence has the aspects of its calls, each of which changes all calls together, and a few of its own. Without an
earlier call it is the case of its last one.

Most have two calls. The last one is the drawn case; the call before it is the same, has other numbers, is shorter or
lacks a feature, or is the case that was drawn before. In their turn come those after an error, those of two threads and
those whose lengths grow or shrink over a power of two.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta
from msgspec.structs import replace

from fuzz_attn.case.aspect_table import AspectTable
from fuzz_attn.case.aspects import Aspect
from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import CaseError
from fuzz_attn.operations.operation import Lengths, Operation

NAME: Final = "calls"
"""The operation, as a case's JSON names it."""
MOST_CALLS: Final = 8

Storage: TypeAlias = Literal["fresh", "again", "contents", "address"]
"""The memory of a call's tensors: ``fresh``, while that of earlier calls is still in use; the very tensors of the call
before, with the same contents (``again``) or with others (``contents``); or new tensors at the addresses of those of
the call before, which were freed (``address``). A tensor of another layout than before has fresh memory."""
SHARED: Final[tuple[Storage, ...]] = ("again", "contents", "address")
Change: TypeAlias = Callable[[Any], Any]


class Call(Plain, frozen=True):
    """One call of a sequence. One that ``raises`` lacks a tensor, so that the target must raise; it is not judged.

    The number says which tensor, counted from the last argument; 0 is none.
    One that is ``alongside`` runs in a second thread in the middle of the call before it: when that has come to so
    many lines of the target's own code. In a second ``stream`` of a GPU it is made after that call, whose own stream is
    held since that line until this one has ended; on a CPU it is only the next call.
    """

    case: Any
    storage: Storage = "fresh"
    raises: Annotated[int, Meta(ge=0, le=2**10)] = 0
    alongside: Annotated[int, Meta(ge=0, le=2**20)] = 0
    stream: bool = False


class CallSequence(Plain, frozen=True, tag_field="operation", tag=NAME):
    """Calls of one target in one process, in this order, each of which is judged as if it were alone.

    Raises :class:`CaseError` for calls of several operations, and where the first needs a call before it.
    """

    calls: Annotated[tuple[Call, ...], Meta(min_length=1, max_length=MOST_CALLS)]

    def __post_init__(self) -> None:
        """Check the calls together."""
        super().__post_init__()
        first, last = self.calls[0], self.calls[-1]
        if len({type(call.case) for call in self.calls}) != 1 or type(last.case) is type(self):
            raise CaseError("the calls of a sequence must be cases of one operation")
        if first.storage != "fresh" or first.alongside:
            raise CaseError(f"the first call of a sequence cannot have storage={first.storage!r} or be alongside one")
        if last.raises:
            raise CaseError("the last call of a sequence must be judged, so it cannot be one that raises")
        for before, call in pairwise(self.calls):
            if call.alongside and (before.alongside or call.storage != "fresh"):
                raise CaseError("a call alongside one must have fresh memory, and be alongside one of the first thread")
            if call.stream and not call.alongside:
                raise CaseError("a call in a second stream must be alongside another one")
            if call.storage == "again" and call.case != before.case:
                raise CaseError("a call with storage='again' must have the case of the call before it")

    @property
    def last(self) -> Any:
        """The case of the last call."""
        return self.calls[-1].case

    @property
    def seed(self) -> int:
        """The seed of the numbers of the last call."""
        return int(self.last.seed)

    @property
    def compile_key(self) -> Any:
        """The compile key of the last call."""
        return self.last.compile_key


def calls_of(case: Any) -> tuple[Call, ...]:
    """Return the calls of a case, which is one call if it is no sequence."""
    return case.calls if isinstance(case, CallSequence) else (Call(case),)


def sequence_of(calls: tuple[Call, ...]) -> Any:
    """Return a case of some calls: the case of a single one; the first has fresh memory."""
    first = replace(calls[0], storage="fresh", alongside=0, stream=False)
    if len(calls) == 1 and not first.raises:
        return first.case
    return CallSequence((first, *(_settled(before, call) for before, call in pairwise(calls))))


def _settled(before: Call, call: Call) -> Call:
    """Return a call that has the tensors of the call before with the same contents only if it is the same case."""
    return replace(call, storage="contents") if call.storage == "again" and call.case != before.case else call


def mapped(case: Any, change: Change) -> Any:
    """Return a case with a change of each of its calls."""
    if not isinstance(case, CallSequence):
        return change(case)
    return sequence_of(tuple(replace(call, case=change(call.case)) for call in case.calls))


def with_storage(case: Any, old: Storage, new: Storage) -> Any:
    """Return a case whose calls have other memory where they have that of one kind."""
    calls = calls_of(case)
    return sequence_of(tuple(replace(call, storage=new) if call.storage == old else call for call in calls))


def _has_storage(case: Any, storage: Storage) -> bool:
    return any(call.storage == storage for call in calls_of(case))


def _of_storage(words: str, storage: Storage, *instead: Storage) -> Aspect:
    smaller = tuple(partial(with_storage, old=storage, new=each) for each in instead)
    return Aspect(
        words,
        partial(_has_storage, storage=storage),
        lambda case, on: case if on else with_storage(case, storage, "fresh"),
        smaller=smaller,
    )


def numbered(case: Any, seed: int) -> Any:
    """Return a case of the same shape and arguments with other numbers."""
    return replace(case, seed=seed)


def _differ(case: Any) -> bool:
    """Return whether the calls differ in more than the seed of their numbers."""
    calls = calls_of(case)
    return any(numbered(call.case, calls[-1].case.seed) != calls[-1].case for call in calls)


def _alike(case: Any, *, of: int = -1) -> Any:
    """Return a case whose calls are all like the one at a place, but for the seed of their numbers."""
    calls = calls_of(case)
    like = calls[of].case
    return sequence_of(tuple(replace(call, case=numbered(like, call.case.seed)) for call in calls))


def _same_numbers(case: Any) -> Any:
    """Return a case whose calls have the numbers of the last one."""
    calls = calls_of(case)
    changed = (replace(call, case=numbered(call.case, calls[-1].case.seed)) for call in calls)
    return sequence_of(
        tuple(replace(call, storage="again" if call.storage == "contents" else call.storage) for call in changed)
    )


def without_raising(case: Any) -> Any:
    """Return a case without calls that raise."""
    return sequence_of(tuple(replace(call, raises=0) for call in calls_of(case)))


def one_by_one(case: Any) -> Any:
    """Return a case without a second thread or stream."""
    return sequence_of(tuple(replace(call, alongside=0, stream=False) for call in calls_of(case)))


def _alongside(words: str, *, stream: bool, smaller: tuple[Change, ...] = ()) -> Aspect:
    return Aspect(
        words,
        lambda case: any(call.alongside and call.stream is stream for call in calls_of(case)),
        lambda case, on: case if on else one_by_one(case),
        smaller=(*smaller, *(partial(_alongside_at, line=line) for line in range(1, 12))),
    )


def _alongside_at(case: Any, line: int) -> Any:
    """Return a case whose second thread or stream runs at another line."""
    return sequence_of(tuple(replace(call, alongside=line) if call.alongside else call for call in calls_of(case)))


def _in_thread(case: Any) -> Any:
    """Return a case with a second thread in the place of a second stream."""
    return sequence_of(tuple(replace(call, stream=False) for call in calls_of(case)))


EARLIER: Final = "an earlier call"
SAME_TENSORS: Final = "the same tensors again"
SAME_STORAGE: Final = "the same storage with other contents"
SAME_ADDRESS: Final = "new tensors at the same addresses"
OTHER_ARGUMENTS: Final = "calls with different arguments"
OTHER_NUMBERS: Final = "calls with different numbers"
AFTER_ERROR: Final = "an earlier call that raises"
SECOND_THREAD: Final = "a call in a second thread"
SECOND_STREAM: Final = "a call in a second stream"

OWN: Final = (
    Aspect(EARLIER, lambda case: len(calls_of(case)) > 1, lambda case, on: case if on else calls_of(case)[-1].case),
    Aspect(
        AFTER_ERROR,
        lambda case: any(call.raises for call in calls_of(case)),
        lambda case, on: case if on else without_raising(case),
    ),
    _alongside(SECOND_STREAM, stream=True, smaller=(_in_thread,)),
    _alongside(SECOND_THREAD, stream=False),
    _of_storage(SAME_ADDRESS, "address", "contents"),
    _of_storage(SAME_STORAGE, "contents"),
    _of_storage(SAME_TENSORS, "again"),
    Aspect(OTHER_ARGUMENTS, _differ, lambda case, on: case if on else _alike(case), smaller=(partial(_alike, of=0),)),
    Aspect(
        OTHER_NUMBERS,
        lambda case: len({call.case.seed for call in calls_of(case)}) > 1,
        lambda case, on: case if on else _same_numbers(case),
    ),
)
"""The aspects of a sequence beside those of its calls."""


def lifted(aspect: Aspect) -> Aspect:
    """Return an aspect of single cases as one of sequences: its value is that of a call which is more than simple."""
    smaller = tuple(partial(mapped, change=change) for change in aspect.smaller)
    named = partial(_named, aspect) if aspect.named is not None else None
    return aspect._replace(
        value=partial(_value, aspect), changed=partial(_changed, aspect), smaller=smaller, named=named
    )


def _named(aspect: Aspect, case: Any) -> tuple[str, ...]:
    """Return the words of the trait in each call that is more than simple, each once."""
    calls = (call.case for call in calls_of(case))
    return tuple(dict.fromkeys(words for each in calls if aspect.present(each) for words in aspect.words_in(each)))


def _value(aspect: Aspect, case: Any) -> Any:
    values = [aspect.value(call.case) for call in calls_of(case)]
    if aspect.levels:
        return max(values)
    return next((value for value in reversed(values) if value != aspect.simplest), values[-1])


def _changed(aspect: Aspect, case: Any, value: Any) -> Any:
    return mapped(case, lambda single: aspect.having(single, value))


def table_of(single: AspectTable, parts: Callable[[Any], int], with_parts: Callable[..., Any]) -> AspectTable:
    """Return the aspects of sequences of cases that have a table; ``parts`` and ``with_parts`` are of such a case."""
    batch = Aspect(
        "parts of the batches",
        lambda case: max(parts(call.case) for call in calls_of(case)),
        lambda case, value: case,
        simplest=1,
        trait=False,
        smaller=tuple(partial(_with_few_parts, parts=parts, with_parts=with_parts, kept=kept) for kept in _KEPT),
    )
    oddities, kinds, nuances = (tuple(map(lifted, each)) for each in (single.oddities, single.kinds, single.nuances))
    return AspectTable((*OWN, *oddities), (batch, *kinds), nuances)


_KEPT: Final = (slice(0, 1), slice(-1, None), slice(0, 2), slice(-2, None), slice(0, -1), slice(1, None))


def _with_few_parts(case: Any, *, parts: Callable[[Any], int], with_parts: Callable[..., Any], kept: slice) -> Any:
    def fewer(single: Any) -> Any:
        places = tuple(range(parts(single))[kept])
        return with_parts(single, places) if places else single

    return mapped(case, fewer)


_IN_THREAD: Final = ", in a second thread in the middle of the first"


def in_words(case: Any, number: int) -> str:
    """Return what the call at a place is to those before it, in words."""
    calls = calls_of(case)
    call = calls[number]
    if call.raises:
        return "which lacks a tensor, so that the target must raise"
    if not number:
        in_middle = any(each.alongside and not each.stream for each in calls[1:2])
        return "the first" + ", with the second in its middle" * in_middle
    before = calls[number - 1]
    where = ", in a second stream while that of the one before is held" if call.stream else _IN_THREAD
    thread = where * bool(call.alongside)
    after = "after one that raised, " * bool(before.raises)
    return f"{after}{_memory_words(before, call)}{thread}"


def _memory_words(before: Call, call: Call) -> str:
    same = call.case == before.case
    numbers = not same and numbered(before.case, call.case.seed) == call.case
    match call.storage:
        case "again":
            return "the same call again with the same tensors"
        case "contents":
            return "the same storage with other contents" if numbers else "other arguments, in the same storage"
        case "address":
            return "new tensors at the same addresses" + ("" if numbers else ", of other arguments" * (not same))
    if same:
        return "the same call with new tensors"
    return "new tensors of the same shapes" if numbers else "other arguments"


def positions(case: Any) -> Iterator[str]:
    """Yield for each call its number of how many, and what it is to those before it."""
    count = len(calls_of(case))
    for number in range(count):
        yield f"call {number + 1} of {count}, {in_words(case, number)}"


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
