"""Near cases: cases with the features of a failing one and other lengths, heads, numbers and sizes of scores.

Healthy cases lack what the failure needs: a kernel should be right on them before and after a repair.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from fuzz_attn.case.aspect_table import AspectTable
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import HeadLayout, Sequence, is_fp8
from fuzz_attn.case.recipes import NormalScores
from fuzz_attn.errors import CaseError
from fuzz_attn.oracle.verdict import Verdict

E = TypeVar("E")
LARGE_SCORES: Final = NormalScores(100.0)
"""The scores of some of the cases: a softmax that only small ones survive is wrong there."""


PLAIN: Final = 1000
"""The first number of near cases that begin without what a failure needs; most of them are short."""

LONG: Final = 5
"""The last digit of their numbers for those with more than a tile of query tokens, or of keys."""

TURN: Final = 12
"""The other near cases repeat after so many: a few of each round differ in more than the rest."""
OF_LONG: Final = 8
"""The place in a round of a case with more than a tile; in the first round, in another number of segments."""
OF_WIDE: Final = 4
"""The place of a long case whose window, where it has one, is wider than a tile or a segment."""
WIDE: Final = 50
"""That window, in keys."""
FEWER_KEYS: Final = 4
"""How many more query tokens than keys some sequences have, where the case has such."""
OF_VALUES: Final = 3
"""The place of a case whose values have another size."""
OF_HEADS: Final = 10
"""The place of a case whose heads have another size."""
HEAD_SIZES: Final = (24, 16)
"""Sizes of heads in some near cases: with one column, or a full block, much is the same by chance."""
VALUE_SIZES: Final = (24, 40, 8)
"""Sizes of values in a near case, of which at least one is neither that of the case nor that of its keys."""
SEGMENTS: Final = (7, 5)
"""Numbers of segments of which most are without keys in a short sequence, and none is a power of two."""


class Kind(Protocol):
    """What a search for changes asks an operation."""

    aspects: ClassVar[AspectTable]

    def near_case(self, case: Any, number: int) -> Any:
        """Return a case with the features of another one and other sizes; raises ``CaseError`` if it cannot exist."""

    def unpromised(self, case: Any, domain: Any) -> str:
        """Return what of a case a target does not promise."""

    def failures(self, experiment: Any, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of an experiment."""


def near_cases(kind: Kind, case: Any, first: int, last: int) -> Iterator[Any]:
    """Yield the near cases of some numbers; those that cannot exist are left out. The same each time."""
    for number in range(first, last):
        try:
            yield kind.near_case(case, number)
        except CaseError:
            continue


def near_attention(case: AttentionCase, number: int) -> AttentionCase:
    """Return the near case of a number; raises ``CaseError`` where it cannot exist."""
    chance = random.Random(number)  # noqa: S311 - no secret
    mixed = number % 5 == 3  # sequences of every length, which other kernels may answer
    apart = FAMILIES[case.family].decodes_apart and not mixed
    far = bool(case.strides.far or case.pages.first_block)  # rows of which each needs memory of its own
    is_long = number < PLAIN and number % TURN == OF_LONG
    sequences = []
    for _ in range(chance.choice((1, 2, 3))):
        one = chance.choice(case.sequences)
        query_len, context_len = one.query_len, one.context_len
        if mixed or query_len > 1 or not (apart or case.filter_by_query_len):
            query_len = chance.choice((query_len, 2 if apart else 1, 2, 3, 5, 7, 19 if number % 3 == 0 else 3))
        if context_len < 0 and FAMILIES[case.family].any_lengths and number % 3 == 1:
            query_len, context_len = max(query_len, FEWER_KEYS + 1), -FEWER_KEYS
            sequences.append(Sequence(query_len, context_len))
            continue
        if number >= PLAIN and number % 10 == LONG and not far:
            several = query_len > 1 or not (apart or case.filter_by_query_len)
            sequences = [Sequence(70, min(context_len, 2)) if several else Sequence(query_len, 150)] * 2
            break
        if is_long and query_len > 1 and not far:
            longer_by = 140 if number > TURN else 0  # several tiles a segment, in its own number of them
            sequences = [Sequence(70, context_len + longer_by), Sequence(37, context_len)]
            break
        if number >= PLAIN and number % 4 != 1:
            context_len = min(context_len, chance.randrange(4))
            sequences.append(Sequence(min(query_len, 3), context_len))
            continue
        longer: tuple[int, ...] = (context_len, context_len, context_len + chance.randrange(5), chance.randrange(20))
        if (number % 6 == 4 or is_long) and not far:
            longer = (context_len + 140,)
        sequences.append(Sequence(query_len, chance.choice((*longer, chance.randrange(70)))))
    near = replace(
        case,
        sequences=tuple(sequences),
        window=case.window and chance.choice((case.window, chance.randrange(1, 24))),
        heads=HeadLayout(2, 2, case.heads.head_size, case.heads.value_size) if number % 3 == 2 else case.heads,
        scores=LARGE_SCORES if number % 4 == 1 else NormalScores(),
        overrides=(),
        seed=number,
    )
    near = _in_other_segments(near) if is_long and number < TURN else near
    if number < PLAIN and number % TURN == OF_WIDE and case.window:
        near = replace(near, window=WIDE)
    near = _with_other_values(near) if number < PLAIN and number % TURN == OF_VALUES else near
    near = _with_other_heads(near) if number < PLAIN and number % TURN == OF_HEADS else near
    return _in_other_memory(_scaled(near, chance), chance) if number % 2 else near


def _in_other_segments(case: AttentionCase) -> AttentionCase:
    """Return the case with another number of segments, where it says how many."""
    launch, first = case.launch, SEGMENTS[0]
    number = SEGMENTS[1] if launch.num_segments == first else first
    return _tried(case, launch=msgspec.structs.replace(launch, num_segments=number)) if launch.num_segments else case


def _with_other_values(case: AttentionCase) -> AttentionCase:
    """Return the case with other values than keys of another size, where they differ in it."""
    heads = case.heads
    if heads.head_size_v == heads.head_size:
        return case
    others = (size for size in VALUE_SIZES if size not in (heads.head_size, heads.head_size_v))
    return _tried(case, heads=msgspec.structs.replace(heads, value_size=next(others)))


def _with_other_heads(case: AttentionCase) -> AttentionCase:
    """Return the case with heads of another size, where values have the same one."""
    if case.heads.value_size:
        return case
    size = next(size for size in HEAD_SIZES if size != case.heads.head_size)
    return _tried(case, heads=msgspec.structs.replace(case.heads, head_size=size))


def _scaled(case: AttentionCase, chance: random.Random) -> AttentionCase:
    """Return the case with scales that no two tensors share, where it has any."""
    names = {"q": case.dtypes.q, "k": case.dtypes.kv, "v": case.dtypes.kv, "out": case.dtypes.out}
    scales = {
        name: chance.choice((0.75, 1.25, 1.5)) * (-1 if getattr(case.scales, name) < 0 else 1)
        for name, dtype in names.items()
        if is_fp8(dtype) and getattr(case.scales, name)
    }
    return _tried(case, scales=msgspec.structs.replace(case.scales, **scales))


def _in_other_memory(case: AttentionCase, chance: random.Random) -> AttentionCase:
    """Return the case with gaps in its tensors and a wider table of pages in another order, as far as it can be."""
    for name in ("q_token", "q_head", "out_token", "out_head", "cache_slot", "block_table"):
        if not case.strides.far:
            case = _tried(case, strides=msgspec.structs.replace(case.strides, **{name: chance.choice((0, 4, 8))}))
    if not case.pages.first_block:
        for name, value in (("extra_columns", chance.choice((0, 1, 3))), ("permuted", True), ("spare_blocks", 2)):
            case = _tried(case, pages=msgspec.structs.replace(case.pages, **{name: value}))
    return case


def _tried(case: AttentionCase, **changes: object) -> AttentionCase:
    """Return the case with changes; without them where it cannot have them."""
    try:
        return replace(case, **changes)
    except CaseError:
        return case


def near_experiments(experiment: E, kind: Kind, number: int) -> Iterator[E]:
    """Yield experiments of so many near cases, without those where the target raises or a sanitizer finds something."""
    own: Any = experiment
    for case in near_cases(kind, own.case, 1, number + 1):
        near = own.with_target(case, own.target)
        promised = not kind.unpromised(case, own.target.domain)
        if promised and not (near.first.error or near.first.observations):
            yield near


def healthy_cases(kind: Kind, case: Any, number: int) -> Iterator[Any]:
    """Yield at most so many cases without some of what a failing case is beyond the simplest one.

    In short cases near the failing one, each trait is dropped by itself in turn, and each feature that the case lacks
    is added by itself; then some traits are dropped together. A third of the cases are only short.
    """
    traits = [aspect for aspect in kind.aspects.traits if aspect.present(case)]
    lacking = [each for each in kind.aspects.traits if each.has_form and not each.present(case) and not each.virtual]
    for index in range(number):
        chance = random.Random(PLAIN + index)  # noqa: S311 - no secret
        some = [each for each in traits if chance.random() < 0.6]
        turn = index // 3
        others = [] if index % 3 == 2 else traits[turn : turn + 1] or some
        if index % 3 == 1 and lacking:
            others = [lacking[turn % len(lacking)]]
        try:
            plain = kind.near_case(case, PLAIN + index)
        except CaseError:
            plain = case
        for aspect in others:
            try:
                plain = aspect.having(plain, True) if aspect in lacking else aspect.without(plain)
            except CaseError:
                continue
        yield plain
