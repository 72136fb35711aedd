"""Merging of attention states as an operation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from fuzz_attn.case.aspects import SIMPLEST_SIZE
from fuzz_attn.case.plain import counted
from fuzz_attn.operations.merge_states.state_case import (
    FEATURES,
    NAME,
    POISONED,
    ROLES,
    TABLE,
    StateCase,
    StateDomain,
    described,
    key_pool,
    unpromised,
)
from fuzz_attn.operations.operation import Drawing, ExcludesKey, Operation, RoundSize, SharedRound
from fuzz_attn.properties.relations import Relation, chosen_relation

if TYPE_CHECKING:
    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.forensics.explanation import Explanation
    from fuzz_attn.oracle.verdict import Verdict
    from fuzz_attn.properties.comparisons import Comparison
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.targets.target import Target


def _always(case: Any, domain: Any) -> bool:
    return True


class MergeStates(Operation):
    """Merging of attention states; a case is a :class:`StateCase`."""

    name = NAME
    families: ClassVar = {NAME: "merging of attention states"}
    case_type = StateCase
    domain_type = StateDomain
    aspects = TABLE
    features = FEATURES
    poisons: ClassVar = {POISONED: "states"}
    relations: ClassVar = {
        relation.name: relation
        for relation in (
            Relation("determinism", "exact", "a second launch on the same input gives the same bits", _always),
            Relation("poison_independence", "exact", "unused memory does not change the output", _always),
            Relation(
                "state_order",
                "bounded",
                "the order of the states does not change the output",
                lambda case, domain: case.num_states > 1,  # type: ignore[attr-defined]
            ),
        )
    }

    def described(self, case: StateCase) -> list[tuple[str, str]]:
        """Return a case as (what, words) pairs."""
        return described(case)

    def sizes_in_words(self, case: StateCase) -> tuple[str, ...]:
        """Return the numbers of states, tokens and heads."""
        sizes = (case.num_states, "state"), (case.num_tokens, "token"), (case.num_heads, "head")
        return tuple(counted(number, noun) for number, noun in sizes)

    def ratio_type(self, case: StateCase) -> str:
        """Return the type of the states."""
        return case.dtype

    def sizes_of(self, case: StateCase) -> Iterable[tuple[str, int]]:
        """Return the sizes of states and rows."""
        return (
            ("states", case.num_states),
            ("tokens", case.num_tokens),
            ("heads", case.num_heads),
            ("head size", case.head_size),
        )

    def types_of(self, case: StateCase) -> Iterable[tuple[str, str]]:
        """Return the type of states and output."""
        return (("states", case.dtype),)

    def limits_of(self, domain: StateDomain) -> dict[str, str]:
        """Return types, sizes and features."""
        return {
            "types of states": ", ".join(domain.dtypes),
            "head sizes": " to ".join(map(str, domain.head_sizes)),
            "states": " to ".join(map(str, domain.num_states)),
            "features": ", ".join(sorted(domain.features)) or "none",
        }

    def unpromised(self, case: StateCase, domain: StateDomain) -> str:
        """Return what of a case its target does not promise, in words; an empty string where it promises all."""
        return unpromised(case, domain)

    def simplicity(self, case: StateCase) -> tuple[float, ...]:
        """Return a key by which few states come first, then few rows, then small heads, then LSEs near 0."""
        return (
            case.num_states,
            case.num_tokens,
            case.num_heads,
            abs(case.head_size - SIMPLEST_SIZE),
            case.gap + case.padded_tokens,
            abs(case.lse_offset) + abs(case.lse_spread - 1.0),
        )

    def harmless(self, case: StateCase, places: Iterable[str]) -> StateCase:
        """Return the case with zeros in the outputs of empty states."""
        return replace(case, poison="zero")

    def is_harmless(self, case: StateCase, place: str) -> bool:
        """Return whether the outputs of empty states are zeros."""
        return case.poison == "zero"

    def without_padding(self, case: StateCase) -> StateCase:
        """Return the case without rows behind those of its tokens."""
        return replace(case, padded_tokens=0)

    def has_second_case(self, relation: str) -> bool:
        """Return whether the second launch of a relation is like a case of its own."""
        return relation == "poison_independence"

    def second_case(self, case: StateCase, relation: str) -> StateCase:
        """Return the case with other poison."""
        from fuzz_attn.operations.merge_states.state_experiment import (  # noqa: PLC0415 - imports torch
            with_other_poison,
        )

        return with_other_poison(case)

    def drawing_of_round(
        self,
        domain: StateDomain,
        round_seed: int,
        size: RoundSize,
        excludes: ExcludesKey | None = None,
        covered: Collection[int] = (),
    ) -> Drawing:
        """Return what a round draws."""
        from fuzz_attn.operations.merge_states import state_draws  # noqa: PLC0415 - imports Hypothesis

        keys = state_draws.keys_of_round(domain, round_seed, size.keys, excludes, covered)
        return state_draws.drawing_of(domain, keys, frozenset(self.relations))

    def shared_round(
        self, domain: StateDomain, campaign: int, number: int, covered: Collection[int] = ()
    ) -> SharedRound:
        """Return a round that the shards of a campaign can share."""
        from fuzz_attn.operations.merge_states.state_draws import shared_round  # noqa: PLC0415 - imports Hypothesis

        return shared_round(domain, campaign, number, covered, frozenset(self.relations))

    def drawing_of_shared(self, domain: StateDomain, shared: Any) -> Drawing:
        """Return what a shared round draws."""
        from fuzz_attn.operations.merge_states.state_draws import drawing_of  # noqa: PLC0415 - imports Hypothesis

        return drawing_of(domain, (shared.key,), shared.relations)

    def may_play(self, shared: Any, domain: StateDomain, excludes: ExcludesKey | None) -> bool:
        """Return whether a shared round lies within what is left of a domain."""
        return shared.key in key_pool(domain) and not (excludes is not None and excludes(shared.key))

    def chosen_relation(self, choice: int, case: StateCase, domain: StateDomain, among: Collection[str]) -> str:
        """Return one of the relations that hold for a case."""
        return chosen_relation(choice, case, domain, among, self.relations)

    def uncovered(self, domain: StateDomain, covered: Collection[int]) -> tuple[int, int]:
        """Return how many compile keys of a domain are not covered, and how many there are."""
        pool = key_pool(domain)
        return sum(key.number not in covered for key in pool), len(pool)

    def parameters_of(self, binding: Binding, reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Return a row for each parameter of a target: its name, its role in words, and why it has that."""
        return [(name, ROLES[name], why) for name, why in reasons.items()]

    def load_target(self, name: str, family: str | None, binding: Binding | None) -> Target:
        """Return the target that a specification names."""
        from fuzz_attn.operations.merge_states.state_target import load  # noqa: PLC0415 - imports torch

        return load(name, binding)

    def easy_case(self, domain: StateDomain) -> StateCase:
        """Return a small case."""
        return StateCase(head_size=key_pool(domain)[0].head_size, dtype=domain.dtypes[0])

    def experiment(
        self, case: StateCase, target: Target, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> Experiment:
        """Return the experiment of a case on a target."""
        from fuzz_attn.operations.merge_states.state_experiment import StateExperiment  # noqa: PLC0415 - imports torch

        given: Any = case
        return StateExperiment(given, target, backend, strict=strict, host_only=host_only)

    def digest(self, case: StateCase) -> str:
        """Return 16 hexadecimal digits of the tensors of a case."""
        from fuzz_attn.operations.merge_states.state_experiment import digest  # noqa: PLC0415 - imports torch

        return digest(case)

    def failures(self, experiment: Experiment, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of an experiment and one relation, else only the oracle's."""
        from fuzz_attn.operations.merge_states.state_experiment import failures  # noqa: PLC0415 - imports torch

        return failures(experiment, relation)

    def with_causes(self, verdict: Verdict, experiment: Experiment) -> Verdict:
        """Return a failed verdict that names the poison of empty states where the case passes without it."""
        from fuzz_attn.operations.merge_states.state_explain import with_causes  # noqa: PLC0415 - imports torch

        return with_causes(verdict, experiment)

    def explain(self, experiment: Experiment, relation: str | None) -> Explanation:
        """Return which typical mistake gives the outputs."""
        from fuzz_attn.operations.merge_states.state_explain import explain  # noqa: PLC0415 - imports torch

        return explain(experiment)

    def compare(self, relation: str, experiment: Experiment) -> Comparison:
        """Return the second launch of a relation, and what it must give."""
        from fuzz_attn.operations.merge_states.state_experiment import compare  # noqa: PLC0415 - imports torch

        return compare(relation, experiment)
