"""Rehearsal: the kernels that cases of a round need, found by calling the target on them without a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from fuzz_attn.backends.compiler import CompilerBackend
from fuzz_attn.engine.orders import Order
from fuzz_attn.engine.schedule import play_shared_round
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.operations.operation import SharedRound
from fuzz_attn.operations.registry import AnyCase, AnyDomain, operation_of
from fuzz_attn.oracle.verdict import Refusal
from fuzz_attn.properties.experiment import refusal_by
from fuzz_attn.targets.target import Target
from fuzz_attn.ttir.compiler_compat import KernelKey, WantedKernel

SAMPLE: Final = 32
"""Cases of a round that show which kernels it needs."""
MOST_FAILED: Final = 0.1
"""Where more of the cases cannot be rehearsed, the kernels of a round are not all known."""
MOST_TRIED: Final = 4
"""After so many kernels of a round that do not compile, and none that does, the others are not tried."""


class Rehearsed(NamedTuple):
    """A case and the kernels that it needs, or why it is refused, or that it could not be rehearsed."""

    order: Order
    kernels: tuple[WantedKernel, ...] = ()
    refusal: Refusal | None = None
    failed: bool = False


Refused: TypeAlias = tuple[Order, Refusal]
"""An order and why its case is refused."""


class Rehearsal:
    """Calls a target on the cases of rounds. Its kernels are noted instead of launched."""

    def __init__(self, target: Target, backend: CompilerBackend, domain: AnyDomain) -> None:
        self._target, self._backend, self._domain = target, backend, domain

    def cases_of(self, shared: SharedRound, count: int = SAMPLE) -> list[Rehearsed]:
        """Return the sample of a round; other cases of it need hardly any other kernels."""
        found: list[Rehearsed] = []

        def attempt(case: AnyCase, relation: str | None) -> None:
            found.append(self.rehearsed(case, relation))

        play_shared_round(self._domain, shared, shared.sample, count, attempt)
        return found

    def rehearsed(self, case: AnyCase, relation: str | None) -> Rehearsed:
        """Call the target on a case, and on the second one of its relation; a refused case needs no kernel."""
        operation, order = operation_of(case), Order(case, relation)
        experiment = operation.experiment(case, self._target, self._backend, strict=False)
        try:
            refusal, failed = experiment.refusal, bool(experiment.first.error)
            if not failed and relation:
                operation.compare(relation, experiment)
        except FuzzAttnError:
            refusal, failed = None, True
        kernels = tuple(self._backend.wanted())
        return Rehearsed(order, () if failed else kernels, refusal, failed and refusal is None)

    def refusals_of(self, cases: Sequence[AnyCase]) -> list[Refusal | None]:
        """Return what host code or Triton's front end refuses of each case."""
        return [self._refusal_of(case) for case in cases]

    def _refusal_of(self, case: AnyCase) -> Refusal | None:
        rehearsed = self.rehearsed(case, None)
        if rehearsed.refusal is not None:
            return rehearsed.refusal
        return next(filter(None, map(_refusal_to_lower, rehearsed.kernels)), None)


def _refusal_to_lower(kernel: WantedKernel) -> Refusal | None:
    try:
        kernel.lower()
    except Exception as error:  # noqa: BLE001 - the compiler may raise anything
        return refusal_by(error, str(error), launched=True)
    return None


@dataclass
class Compiled:
    """How many kernels of a round were ``compiled``, ``loaded`` from Triton's cache, or ``failed``.

    ``accepted`` are some cases that have all of their kernels. If none has, ``refused`` is a case that is refused, with
    the reason.
    """

    compiled: int = 0
    loaded: int = 0
    failed: int = 0
    accepted: list[AnyCase] = field(default_factory=list)
    refused: Refused | None = None

    @property
    def playable(self) -> bool:
        """Whether some case has all of its kernels."""
        return bool(self.accepted)


def compile_most(rehearsed: Sequence[Rehearsed], most: int) -> Compiled:
    """Compile the kernels that most of the cases need, ``most`` kernels unless a single case needs more.

    Kernels that do not compile do not count; others are tried in their place.
    """
    done, tried = Compiled(refused=_refused_by_host(rehearsed)), dict[KernelKey, bool]()
    for example in _most_frequent_first(rehearsed):
        new = [kernel for kernel in example.kernels if kernel.key not in tried]
        if done.playable and done.compiled + done.loaded + len(new) > most:
            continue
        if done.failed >= MOST_TRIED and not done.playable:
            break
        for kernel in new:
            tried[kernel.key] = _compile(kernel, example.order, done)
        if all(tried[kernel.key] for kernel in example.kernels):
            done.accepted.append(example.order.case)
    done.refused = None if done.playable else done.refused
    return done


def kernels_of(rehearsed: Sequence[Rehearsed]) -> set[KernelKey]:
    """Return the kernels that the cases need together."""
    return {kernel.key for each in rehearsed for kernel in each.kernels}


def known_kernels(rehearsed: Sequence[Rehearsed]) -> bool:
    """Return whether nearly all cases could be rehearsed."""
    return sum(each.failed for each in rehearsed) <= MOST_FAILED * len(rehearsed)


def refused_among(rehearsed: Sequence[Rehearsed]) -> tuple[Refused, ...]:
    """Return one case of each place where host code refuses cases."""
    by_site = {each.refusal.site: (each.order, each.refusal) for each in reversed(rehearsed) if each.refusal}
    return tuple(by_site.values())


def _refused_by_host(rehearsed: Sequence[Rehearsed]) -> Refused | None:
    """Return the first case if all are refused."""
    refused = [(each.order, each.refusal) for each in rehearsed if each.refusal is not None]
    return refused[0] if refused and len(refused) == len(rehearsed) else None


def _most_frequent_first(rehearsed: Sequence[Rehearsed]) -> Iterator[Rehearsed]:
    """Yield one case of each set of kernels; those of the sets that most cases need come first."""
    sets = [frozenset(kernel.key for kernel in each.kernels) for each in rehearsed]
    examples = dict(zip(reversed(sets), reversed(rehearsed), strict=True))
    return (examples[each] for each, _ in Counter(sets).most_common() if each)


def _compile(kernel: WantedKernel, order: Order, done: Compiled) -> bool:
    """Compile a kernel and count it; return whether it is there."""
    try:
        compiled = kernel.compile()
    except Exception as error:  # noqa: BLE001 - the compiler may raise anything
        done.failed += 1
        refusal = refusal_by(error, str(error), launched=True)
        if refusal is not None and done.refused is None:
            done.refused = order, refusal
        return False
    done.compiled += compiled
    done.loaded += not compiled
    return True
