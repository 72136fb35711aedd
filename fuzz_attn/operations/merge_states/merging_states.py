"""Merging of attention states as an operation."""

from __future__ import annotations

import random
from collections.abc import Iterable
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
    StateKey,
    described,
    key_pool,
    unpromised,
)
from fuzz_attn.operations.operation import tensor_roles
from fuzz_attn.operations.small_operation import WIDE_SPREAD, SmallOperation, always, near_size
from fuzz_attn.properties.relations import Relation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.forensics.explanation import Explanation
    from fuzz_attn.operations.merge_states.state_experiment import StateExperiment
    from fuzz_attn.operations.small_target import Roles
    from fuzz_attn.oracle.verdict import Verdict
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.strategies.draws import Sample
    from fuzz_attn.targets.target import Target


def _has_poison(case: Any, domain: Any) -> bool:
    return len(domain.empty_outputs) > 1


class MergeStates(SmallOperation):
    """Merging of attention states; a case is a :class:`StateCase`."""

    name = NAME
    families: ClassVar = {NAME: "merging of attention states"}
    case_type = StateCase
    domain_type = StateDomain
    aspects = TABLE
    features = FEATURES
    roles = ROLES
    poisons: ClassVar = {POISONED: "states"}
    tensor_roles = tensor_roles(
        {
            "partial_outputs": "numbers",
            "partial_lses": "sums",
            "token_outputs": "numbers",
            "token_lses": "sums",
            "state_indptr": "indices",
            "first_output": "numbers",
            "second_output": "numbers",
            "first_lse": "sums",
            "second_lse": "sums",
            "out": "output",
            "lse": "sums",
        }
    )
    relations: ClassVar = {
        relation.name: relation
        for relation in (
            Relation("determinism", "exact", "a second launch on the same input gives the same bits", always),
            Relation("poison_independence", "exact", "unused memory does not change the output", _has_poison),
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

    def has_second_case(self, relation: str) -> bool:
        """Return whether the second launch of a relation is like a case of its own."""
        return relation == "poison_independence"

    def second_case(self, case: StateCase, relation: str) -> StateCase:
        """Return the case with other poison."""
        from fuzz_attn.operations.merge_states.state_experiment import (  # noqa: PLC0415 - imports torch
            with_other_poison,
        )

        return with_other_poison(case)

    def pool(self, domain: StateDomain) -> tuple[StateKey, ...]:
        """Return the compile keys that cases are drawn from."""
        return key_pool(domain)

    def freed(self, domain: StateDomain, key: StateKey, sample: Sample) -> StateKey:
        """Return the key with heads of any size of the domain."""
        from fuzz_attn.strategies.draws import free_size  # noqa: PLC0415 - imports Hypothesis

        return replace(key, head_size=free_size(domain.head_sizes, 1, sample))

    def cases(self, domain: StateDomain, keys: tuple[StateKey, ...]) -> SearchStrategy[StateCase]:
        """Return a strategy of cases of some compile keys."""
        from fuzz_attn.operations.merge_states.state_draws import state_cases  # noqa: PLC0415 - imports Hypothesis

        return state_cases(domain, keys)

    def experiments(self) -> type[StateExperiment]:
        """Return the class of its experiments."""
        from fuzz_attn.operations.merge_states.state_experiment import StateExperiment  # noqa: PLC0415 - imports torch

        return StateExperiment

    def load_target(self, name: str, family: str | None, binding: Binding | None) -> Target:
        """Return the target that a specification names."""
        from fuzz_attn.operations.merge_states.state_experiment import load  # noqa: PLC0415 - imports torch

        return load(name, binding)

    def signature_roles(self) -> Roles:
        """Return the roles that the parameters of its targets may have."""
        from fuzz_attn.operations.merge_states.state_experiment import STATE_ROLES  # noqa: PLC0415 - imports torch

        return STATE_ROLES

    def plain_case(self, domain: StateDomain) -> StateCase:
        """Return two states of three tokens and two heads."""
        key = key_pool(domain)[min(1, len(domain.dtypes) - 1)]
        return StateCase(2, 3, 2, key.head_size, key.dtype, lse_spread=3.0, base=domain.lse.base)

    def easy_case(self, domain: StateDomain) -> StateCase:
        """Return a small case."""
        key = key_pool(domain)[0]
        return StateCase(min(domain.num_states), head_size=key.head_size, dtype=key.dtype, base=domain.lse.base)

    def near_case(self, case: StateCase, number: int) -> StateCase:
        """Return a case with the features of another one, other sizes and other LSEs."""
        chance = random.Random(number)  # noqa: S311 - no secret
        return replace(
            case,
            num_states=chance.choice((case.num_states, 1, 2, 3, 4, 7)),
            num_tokens=chance.choice((case.num_tokens, 1, 2, 3, 5)),
            num_heads=chance.choice((case.num_heads, 1, 2, 3)),
            head_size=near_size(case.head_size, number),
            lse_offset=chance.choice((case.lse_offset, case.lse_offset, 3.0, 50.0, -100.0)),
            lse_spread=WIDE_SPREAD if number % 5 == 2 else case.lse_spread,  # weights of 0 beside others
            gap=chance.choice((case.gap, 4)),
            empty_states=case.empty_states or (case.empty_rows and number % 3 == 1),  # also beside states with keys
            seed=number,
        )

    def with_causes(self, verdict: Verdict, experiment: Experiment) -> Verdict:
        """Return a failed verdict that names the poison of empty states where the case passes without it."""
        from fuzz_attn.operations.merge_states.state_explain import with_causes  # noqa: PLC0415 - imports torch

        return with_causes(verdict, experiment)

    def explain(self, experiment: Experiment, relation: str | None) -> Explanation:
        """Return which typical mistake gives the outputs."""
        from fuzz_attn.operations.merge_states.state_explain import explain  # noqa: PLC0415 - imports torch

        return explain(experiment, self)
