"""Rehearsal: the kernels that a round needs, found by calling the target on its cases without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fuzz_attn.backends.compiler import CompilerBackend
from fuzz_attn.backends.compiler_compat import KernelKey, WantedKernel
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine.schedule import SAMPLE, SharedRound, play_shared_round
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.properties.check import comparison_of
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.target import Target

MOST_FAILED: Final = 0.02
"""Where more of the cases cannot be rehearsed, the kernels of a round are not all known."""


class Needed(NamedTuple):
    """The kernels of a round that no earlier one needs, and whether nearly all of its cases could be rehearsed."""

    kernels: list[WantedKernel]
    complete: bool


class Rehearsal:
    """Calls a target on the cases of rounds. Its kernels are noted instead of launched."""

    def __init__(self, target: Target, backend: CompilerBackend, domain: Domain) -> None:
        self._target, self._backend, self._domain = target, backend, domain
        self._known: set[KernelKey] = set()
        self._failed = 0

    def kernels_of(self, shared: SharedRound, cases: int = SAMPLE) -> Needed:
        """Return the kernels of the sample of a round; other cases of it need hardly any others."""
        self._failed = 0
        play_shared_round(self._domain, shared, shared.sample, cases, self._rehearse)
        new = [kernel for kernel in self._backend.wanted() if kernel.key not in self._known]
        return Needed(new, self._failed <= MOST_FAILED * cases)

    def compiled(self, kernels: Iterable[WantedKernel]) -> None:
        """Note that kernels are compiled, so that no later round needs them."""
        self._known.update(kernel.key for kernel in kernels)

    def _rehearse(self, case: AttentionCase, relation: str | None) -> None:
        """Call the target on a case, and on the second one of its relation; a refused case needs no kernel."""
        experiment = Experiment(case, self._target, self._backend, strict=False)
        try:
            first = experiment.first
            if first.error:
                self._failed += first.refusal is None
            elif relation:
                comparison_of(relation, experiment)
        except FuzzAttnError:
            self._failed += 1
