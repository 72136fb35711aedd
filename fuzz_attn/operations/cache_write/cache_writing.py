"""Cache writes as an operation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from fuzz_attn.case.aspects import SIMPLEST_SIZE
from fuzz_attn.case.plain import counted
from fuzz_attn.operations.cache_write.write_case import (
    FEATURES,
    FP8_CACHE,
    NAME,
    ROLES,
    TABLE,
    WriteCase,
    WriteDomain,
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


def _has_order(case: Any, domain: Any) -> bool:
    return bool(case.num_tokens > 1)


class CacheWrite(Operation):
    """Writing of new keys and values to a paged cache; a case is a :class:`WriteCase`."""

    name = NAME
    families: ClassVar = {NAME: "writing of keys and values to a paged cache"}
    case_type = WriteCase
    domain_type = WriteDomain
    aspects = TABLE
    features = FEATURES
    fp8_output = FP8_CACHE
    relations: ClassVar = {
        relation.name: relation
        for relation in (
            Relation("determinism", "exact", "a second launch on the same input gives the same bits", _always),
            Relation("poison_independence", "exact", "what the caches held does not change what is written", _always),
            Relation("token_order", "exact", "the order of the tokens does not change what is written", _has_order),
            Relation("other_slots", "exact", "other slots hold the same bits", _always),
        )
    }

    def described(self, case: WriteCase) -> list[tuple[str, str]]:
        """Return a case as (what, words) pairs."""
        return described(case)

    def sizes_in_words(self, case: WriteCase) -> tuple[str, ...]:
        """Return the numbers of tokens, heads and pages."""
        sizes = (case.num_tokens, "token"), (case.num_heads, "head"), (case.num_pages, "page")
        return tuple(counted(number, noun) for number, noun in sizes)

    def ratio_type(self, case: WriteCase) -> str:
        """Return the type of the caches."""
        return case.cache_dtype

    def has_fp8_output(self, case: WriteCase) -> bool:
        """Return whether the caches have an fp8 type."""
        return case.is_fp8

    def sizes_of(self, case: WriteCase) -> Iterable[tuple[str, int]]:
        """Return the sizes of tokens and pages."""
        return (
            ("tokens", case.num_tokens),
            ("heads", case.num_heads),
            ("head size", case.head_size),
            ("page size", case.page_size),
        )

    def types_of(self, case: WriteCase) -> Iterable[tuple[str, str]]:
        """Return the types of new keys and of caches."""
        return (("new keys and values", case.dtype), ("caches", case.cache_dtype))

    def limits_of(self, domain: WriteDomain) -> dict[str, str]:
        """Return types, sizes and features."""
        return {
            "types of new keys and values": ", ".join(domain.dtypes),
            "types of caches": ", ".join(domain.stored_as),
            "head sizes": " to ".join(map(str, domain.head_sizes)),
            "page sizes": " to ".join(map(str, domain.page_sizes)),
            "features": ", ".join(sorted(domain.features)) or "none",
        }

    def unpromised(self, case: WriteCase, domain: WriteDomain) -> str:
        """Return what of a case its target does not promise, in words; an empty string where it promises all."""
        return unpromised(case, domain)

    def simplicity(self, case: WriteCase) -> tuple[float, ...]:
        """Return a key by which few tokens come first, then small heads and caches, then numbers and scales near 1."""
        return (
            case.num_tokens,
            case.num_heads,
            abs(case.head_size - SIMPLEST_SIZE),
            abs(case.page_size - SIMPLEST_SIZE),
            case.spare_pages,
            case.head_gap + case.value_gap + case.padded_tokens,
            sum(abs(each - 1.0) for each in (case.magnitude, case.k_scale, case.v_scale)),
        )

    def without_padding(self, case: WriteCase) -> WriteCase:
        """Return the case without rows behind those of its tokens."""
        return replace(case, padded_tokens=0)

    def drawing_of_round(
        self,
        domain: WriteDomain,
        round_seed: int,
        size: RoundSize,
        excludes: ExcludesKey | None = None,
        covered: Collection[int] = (),
    ) -> Drawing:
        """Return what a round draws."""
        from fuzz_attn.operations.cache_write import write_draws  # noqa: PLC0415 - imports Hypothesis

        keys = write_draws.keys_of_round(domain, round_seed, size.keys, excludes, covered)
        return write_draws.drawing_of(domain, keys, frozenset(self.relations))

    def shared_round(
        self, domain: WriteDomain, campaign: int, number: int, covered: Collection[int] = ()
    ) -> SharedRound:
        """Return a round that the shards of a campaign can share."""
        from fuzz_attn.operations.cache_write.write_draws import shared_round  # noqa: PLC0415 - imports Hypothesis

        return shared_round(domain, campaign, number, covered, frozenset(self.relations))

    def drawing_of_shared(self, domain: WriteDomain, shared: Any) -> Drawing:
        """Return what a shared round draws."""
        from fuzz_attn.operations.cache_write.write_draws import drawing_of  # noqa: PLC0415 - imports Hypothesis

        return drawing_of(domain, (shared.key,), shared.relations)

    def may_play(self, shared: Any, domain: WriteDomain, excludes: ExcludesKey | None) -> bool:
        """Return whether a shared round lies within what is left of a domain."""
        return shared.key in key_pool(domain) and not (excludes is not None and excludes(shared.key))

    def chosen_relation(self, choice: int, case: WriteCase, domain: WriteDomain, among: Collection[str]) -> str:
        """Return one of the relations that hold for a case."""
        return chosen_relation(choice, case, domain, among, self.relations)

    def uncovered(self, domain: WriteDomain, covered: Collection[int]) -> tuple[int, int]:
        """Return how many compile keys of a domain are not covered, and how many there are."""
        pool = key_pool(domain)
        return sum(key.number not in covered for key in pool), len(pool)

    def parameters_of(self, binding: Binding, reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Return a row for each parameter of a target: its name, its role in words, and why it has that."""
        return [(name, ROLES[name], why) for name, why in reasons.items()]

    def load_target(self, name: str, family: str | None, binding: Binding | None) -> Target:
        """Return the target that a specification names."""
        from fuzz_attn.operations.cache_write.write_target import load  # noqa: PLC0415 - imports torch

        return load(name, binding)

    def easy_case(self, domain: WriteDomain) -> WriteCase:
        """Return a small case."""
        key = key_pool(domain)[0]
        return WriteCase(head_size=key.head_size, page_size=key.page_size, dtype=key.dtype, stored_as=key.stored_as)

    def experiment(
        self, case: WriteCase, target: Target, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> Experiment:
        """Return the experiment of a case on a target."""
        from fuzz_attn.operations.cache_write.write_experiment import WriteExperiment  # noqa: PLC0415 - imports torch

        given: Any = case
        return WriteExperiment(given, target, backend, strict=strict, host_only=host_only)

    def digest(self, case: WriteCase) -> str:
        """Return 16 hexadecimal digits of the tensors of a case."""
        from fuzz_attn.operations.cache_write.write_experiment import digest  # noqa: PLC0415 - imports torch

        return digest(case)

    def failures(self, experiment: Experiment, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of an experiment and one relation, else only the oracle's."""
        from fuzz_attn.operations.cache_write.write_experiment import failures  # noqa: PLC0415 - imports torch

        return failures(experiment, relation)

    def explain(self, experiment: Experiment, relation: str | None) -> Explanation:
        """Return which slots and tokens are wrong, and which typical mistake gives that."""
        from fuzz_attn.operations.cache_write.write_explain import explain  # noqa: PLC0415 - imports torch

        return explain(experiment)

    def compare(self, relation: str, experiment: Experiment) -> Comparison:
        """Return the second launch of a relation, and what it must give."""
        from fuzz_attn.operations.cache_write.write_experiment import compare  # noqa: PLC0415 - imports torch

        return compare(relation, experiment)
