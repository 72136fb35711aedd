"""Small operation: a base class of operations with few compile keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from fuzz_attn.errors import BindingError
from fuzz_attn.operations.operation import Drawing, ExcludesKey, Operation, RoundSize, SharedRound
from fuzz_attn.properties.relations import chosen_relation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.binding.signature import Signature
    from fuzz_attn.operations.small.small_experiment import SmallExperiment
    from fuzz_attn.operations.small.small_target import Roles
    from fuzz_attn.oracle.verdict import Verdict
    from fuzz_attn.properties.comparisons import Comparison
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.strategies.sampling.draws import Sample
    from fuzz_attn.targets.target import Target


def always(case: Any, domain: Any) -> bool:
    """Return that a relation holds."""
    return True


class SmallOperation(Operation):
    """An operation whose compile keys are a pool in memory. ``roles`` are the parameters of its targets in words."""

    roles: ClassVar[Mapping[str, str]]

    @abstractmethod
    def pool(self, domain: Any) -> tuple[Any, ...]:
        """Return the compile keys that cases are drawn from, the simplest first."""

    @abstractmethod
    def freed(self, domain: Any, key: Any, sample: Sample) -> Any:
        """Return the key with sizes from anywhere in the domain."""

    @abstractmethod
    def cases(self, domain: Any, keys: tuple[Any, ...]) -> SearchStrategy[Any]:
        """Return a strategy of cases of some compile keys."""

    @abstractmethod
    def experiments(self) -> type[SmallExperiment]:
        """Return the class of its experiments, which imports torch."""

    def without_padding(self, case: Any) -> Any:
        """Return the case without rows behind those of its tokens."""
        return replace(case, padded_tokens=0)

    def drawing_of_round(
        self,
        domain: Any,
        round_seed: int,
        size: RoundSize,
        excludes: ExcludesKey | None = None,
        covered: Collection[int] = (),
    ) -> Drawing:
        """Return what a round draws."""
        from fuzz_attn.operations.small import small_draws  # noqa: PLC0415 - imports Hypothesis

        free = partial(self.freed, domain)
        keys = small_draws.keys_of_round(self.pool(domain), round_seed, size.keys, excludes, covered, free)
        return small_draws.drawing_of(self.cases(domain, keys), self.relations)

    def strategy(self, domain: Any, wanted: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Return a strategy of all cases of a domain, with some values of their compile keys."""
        pool = self.pool(domain)
        keys = (key for key in pool if all(getattr(key, name, value) == value for name, value in wanted.items()))
        return self.cases(domain, tuple(keys) or pool)

    def shared_round(self, domain: Any, campaign: int, number: int, covered: Collection[int] = ()) -> SharedRound:
        """Return a round that the shards of a campaign can share."""
        from fuzz_attn.operations.small.small_draws import shared_round  # noqa: PLC0415 - imports Hypothesis

        return shared_round(self.pool(domain), campaign, number, covered)

    def drawing_of_shared(self, domain: Any, shared: SharedRound) -> Drawing:
        """Return what a shared round draws."""
        from fuzz_attn.operations.small.small_draws import drawing_of  # noqa: PLC0415 - imports Hypothesis

        return drawing_of(self.cases(domain, (shared.key,)), self.relations)

    def may_play(self, shared: SharedRound, domain: Any, excludes: ExcludesKey | None) -> bool:
        """Return whether a shared round lies within what is left of a domain."""
        return shared.key in self.pool(domain) and not (excludes is not None and excludes(shared.key))

    def chosen_relation(self, choice: int, case: Any, domain: Any, among: Collection[str]) -> str:
        """Return one of the relations that hold for a case."""
        return chosen_relation(choice, case, domain, among, self.relations)

    def uncovered(self, domain: Any, covered: Collection[int]) -> tuple[int, int]:
        """Return how many compile keys of a domain are not covered, and how many there are."""
        pool = self.pool(domain)
        return sum(key.number not in covered for key in pool), len(pool)

    def parameters_of(self, binding: Binding, reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Return a row for each parameter of a target: its name, its role in words, and why it has that."""
        rows = []
        for name, why in reasons.items():
            constant = f"the constant {binding.constants[name]!r}" if name in binding.constants else ""
            rows.append((name, constant or self.roles[binding.roles[name]], why))
        return rows

    def takes(self, signature: Signature, stated: Binding) -> bool:
        """Return whether a signature is that of a target."""
        from fuzz_attn.operations.small.small_target import matched  # noqa: PLC0415 - imports torch

        try:
            matched(signature, self.signature_roles(), stated)
        except BindingError:
            return False
        return True

    @abstractmethod
    def signature_roles(self) -> Roles:
        """Return the roles that the parameters of its targets may have, with their names."""

    @abstractmethod
    def plain_case(self, domain: Any) -> Any:
        """Return an easy case that tells how a target is called: no two numbers of it are alike."""

    def calibrated(self, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
        """Return a target once it is known how it is called, and what was learned in sentences.

        What the names do not tell is tried on an easy case. A feature that such a case is refused for is not drawn.
        """
        from fuzz_attn.operations.small.small_calibration import calibrated  # noqa: PLC0415 - imports torch

        return calibrated(self, self.plain_case, target, backend)

    def experiment(
        self, case: Any, target: Any, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> Experiment:
        """Return the experiment of a case on a target."""
        return self.experiments()(case, target, backend, strict=strict, host_only=host_only)

    def digest(self, case: Any) -> str:
        """Return 16 hexadecimal digits of the tensors of a case."""
        from fuzz_attn.inputs.tensors import digest_of  # noqa: PLC0415 - imports torch

        return digest_of(self.experiments().materialise(case))

    def failures(self, experiment: Experiment, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of an experiment and one relation, else only the oracle's."""
        from fuzz_attn.properties.check import failures_of_call  # noqa: PLC0415 - imports torch

        return failures_of_call(experiment, relation, self.compare)

    def compare(self, relation: str, experiment: Experiment) -> Comparison:
        """Return the second launch of a relation, and what it must give."""
        return self.experiments().second[relation](experiment)
