"""Schedule: the rounds of cases that a campaign draws.

Each round has its own seed and its own sample of compile keys. As long as no case is skipped, a round depends only on
the domain and the seed, so other callers can go through the same cases as a campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from random import Random
from typing import Any, Final, TypeAlias

from fuzz_attn.operations.operation import Drawing, ExcludesKey, RoundSize
from fuzz_attn.operations.registry import AnyCase, AnyDomain, operation_of
from fuzz_attn.strategies.draws import Sample

FIRST_ON_CPU: Final = RoundSize(cases=240, keys=40, compiling=0)
ON_CPU: Final = RoundSize(cases=240, keys=40, compiling=2)
"""A cold run on a CPU spends most of its time on lowering kernels, and half of these only a relation's second launch
needs. The oracle finds nearly every bug without that. So the first round has none of these relations, and each later
one has two."""
ON_GPU: Final = RoundSize(cases=480, keys=4, layouts=1, compiling=1)
"""Compilation dominates on a GPU: 0.2 to 1.6 s for each kernel, where a case of a compiled kernel takes 10 ms.

One compile key leads to many Triton kernels, because Triton specialises on strides that are 1 or divisible by 16, in
each combination. With ``ON_GPU`` a kernel has 8 to 19 cases (unified, paged and context). Few keys at a time, because
a round that the time limit cuts off has compiled most of its kernels and judged few of its cases. A run on one machine
has shared rounds instead (``SharedRound`` of attention), which need one to three kernels each.
``tests/benchmarks/bench_kernel_variants.py`` counts them (``16 1``).
"""


def size_on_cpu(number: int) -> RoundSize:
    """Return the size of a round of a shard on a CPU; ``number`` counts them from 0."""
    return ON_CPU if number else FIRST_ON_CPU


Attempt: TypeAlias = Callable[[AnyCase, str | None], None]
"""Called with each case and its relation."""
Skips: TypeAlias = Callable[[AnyCase, str | None], bool]
"""Returns whether to draw another case instead of this one."""
MOST_DRAWS: Final = 40
"""After so many draws without a case the round ends: those that remain are too rare."""


def play_shared_round(
    domain: AnyDomain,
    shared: Any,
    seed: int,
    number_of_cases: int,
    attempt: Attempt,
    skips: Skips | None = None,
) -> None:
    """Draw cases of a shared round and call ``attempt`` with each; an exception of it ends the round."""
    _play(domain, seed, number_of_cases, attempt, operation_of(domain).drawing_of_shared(domain, shared), skips)


def play_round(
    domain: AnyDomain,
    round_seed: int,
    number_of_cases: int,
    attempt: Attempt,
    size: RoundSize = ON_CPU,
    excludes: ExcludesKey | None = None,
    skips: Skips | None = None,
    covered: Collection[int] = (),
) -> None:
    """Draw the cases of one round and call ``attempt`` with each; an exception of it ends the round.

    Compile keys that ``excludes`` are not drawn, unless it excludes all of them. A case that ``skips`` is true for is
    drawn again. Compile keys whose numbers are ``covered`` come last.
    """
    drawing = operation_of(domain).drawing_of_round(domain, round_seed, size, excludes, covered)
    _play(domain, round_seed, number_of_cases, attempt, drawing, skips)


def _play(
    domain: AnyDomain,
    seed: int,
    number_of_cases: int,
    attempt: Attempt,
    drawing: Drawing,
    skips: Skips | None,
) -> None:
    drawn = _drawn(domain, seed, drawing)
    for _ in range(number_of_cases):
        for case, relation in islice(drawn, MOST_DRAWS):
            if skips is None or not skips(case, relation):
                attempt(case, relation)
                break
        else:
            return


def _drawn(domain: AnyDomain, seed: int, drawing: Drawing) -> Iterator[tuple[AnyCase, str | None]]:
    """Yield cases with their relations without end; no draw depends on what became of another case."""
    random, chosen = Random(seed), operation_of(domain).chosen_relation  # noqa: S311 - nothing secret
    strategy, relations = drawing
    while True:
        case, choice = Sample(random).draw(strategy)
        yield case, None if choice is None else chosen(choice, case, domain, relations)
