"""Cache writes as an operation."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
    WriteKey,
    described,
    key_pool,
    unpromised,
)
from fuzz_attn.operations.operation import tensor_roles
from fuzz_attn.operations.small_operation import SmallOperation, always, near_size
from fuzz_attn.properties.relations import Relation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.forensics.explanation import Explanation
    from fuzz_attn.operations.cache_write.write_experiment import WriteExperiment
    from fuzz_attn.operations.small_target import Roles
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.strategies.draws import Sample
    from fuzz_attn.targets.target import Target


MOST_PAGE: Final = 2**16
"""Elements of one head of a page of any size."""


def _has_order(case: Any, domain: Any) -> bool:
    return bool(case.num_tokens > 1)


def _may_be_read(case: Any, domain: Any) -> bool:
    """Return whether attention reads such caches, and there is a token beside one that may be skipped."""
    return not case.per_token_head and not (case.skipped and case.num_tokens == 1)


class CacheWrite(SmallOperation):
    """Writing of new keys and values to a paged cache; a case is a :class:`WriteCase`."""

    name = NAME
    families: ClassVar = {NAME: "writing of keys and values to a paged cache"}
    case_type = WriteCase
    domain_type = WriteDomain
    aspects = TABLE
    features = FEATURES
    roles = ROLES
    fp8_output = FP8_CACHE
    tensor_roles = tensor_roles(
        {
            "key": "numbers",
            "value": "numbers",
            "slot_mapping": "slots",
            "block_table": "indices",
            "seq_lens": "lengths",
            "query_start_loc": "indices",
            "query_lens": "lengths",
            "k_scale": "scale",
            "v_scale": "scale",
            "key_cache": "written",
            "value_cache": "written",
            "kv_cache": "written",
            "k_scale_cache": "written",
            "v_scale_cache": "written",
        }
    )
    relations: ClassVar = {
        relation.name: relation
        for relation in (
            Relation("determinism", "exact", "a second launch on the same input gives the same bits", always),
            Relation("poison_independence", "exact", "what the caches held does not change what is written", always),
            Relation("token_order", "exact", "the order of the tokens does not change what is written", _has_order),
            Relation("other_slots", "exact", "other slots hold the same bits", always),
            Relation(
                "read_back",
                "bounded",
                "attention on the written slot of a token gives what was written",
                _may_be_read,
                compiles=True,
            ),
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

    def pool(self, domain: WriteDomain) -> tuple[WriteKey, ...]:
        """Return the compile keys that cases are drawn from."""
        return key_pool(domain)

    def freed(self, domain: WriteDomain, key: WriteKey, sample: Sample) -> WriteKey:
        """Return the key with heads and pages of any size of the domain, but not with both large."""
        from fuzz_attn.strategies.draws import free_size  # noqa: PLC0415 - imports Hypothesis

        head_size, page_size = (free_size(sizes, 1, sample) for sizes in (domain.head_sizes, domain.page_sizes))
        if head_size * page_size > MOST_PAGE:
            return replace(key, head_size=head_size)
        return replace(key, head_size=head_size, page_size=page_size)

    def cases(self, domain: WriteDomain, keys: tuple[WriteKey, ...]) -> SearchStrategy[WriteCase]:
        """Return a strategy of cases of some compile keys."""
        from fuzz_attn.operations.cache_write.write_draws import write_cases  # noqa: PLC0415 - imports Hypothesis

        return write_cases(domain, keys)

    def experiments(self) -> type[WriteExperiment]:
        """Return the class of its experiments."""
        from fuzz_attn.operations.cache_write.write_experiment import WriteExperiment  # noqa: PLC0415 - imports torch

        return WriteExperiment

    def load_target(self, name: str, family: str | None, binding: Binding | None) -> Target:
        """Return the target that a specification names."""
        from fuzz_attn.operations.cache_write.write_experiment import load  # noqa: PLC0415 - imports torch

        return load(name, binding)

    def signature_roles(self) -> Roles:
        """Return the roles that the parameters of its targets may have."""
        from fuzz_attn.operations.cache_write.write_experiment import WRITE_ROLES  # noqa: PLC0415 - imports torch

        return WRITE_ROLES

    def plain_case(self, domain: WriteDomain) -> WriteCase:
        """Return tokens of two heads, or fewer, in slots in any order."""
        heads = min(2, domain.num_heads[-1])
        return replace(self.easy_case(domain), num_tokens=5, num_heads=heads, shuffled=True, spare_pages=2)

    def easy_case(self, domain: WriteDomain) -> WriteCase:
        """Return a small case."""
        key = key_pool(domain)[0]
        return WriteCase(head_size=key.head_size, page_size=key.page_size, dtype=key.dtype, stored_as=key.stored_as)

    def near_case(self, case: WriteCase, number: int) -> WriteCase:
        """Return a case with the features of another one, other sizes, slots and scales."""
        chance = random.Random(number)  # noqa: S311 - no secret
        scaled = case.is_fp8 and not case.per_token_head
        return replace(
            case,
            num_tokens=chance.choice((case.num_tokens, 1, 2, 3, 5, 19)),
            num_heads=chance.choice((case.num_heads, 1, 2, 3)),
            head_size=near_size(case.head_size, number),
            spare_pages=case.spare_pages + chance.randrange(2),
            k_scale=case.k_scale * chance.choice((1.0, 1.25)) if scaled else 1.0,
            v_scale=case.v_scale * chance.choice((1.0, 0.75)) if scaled else 1.0,
            magnitude=case.magnitude * chance.choice((1.0, 1.0, 4.0)),
            shuffled=case.shuffled or number % 3 == 0,
            head_gap=case.head_gap or chance.choice((0, 4)),
            seed=number,
        )

    def explain(self, experiment: Experiment, relation: str | None) -> Explanation:
        """Return which slots and tokens are wrong, and which typical mistake gives that."""
        from fuzz_attn.operations.cache_write.write_explain import explain  # noqa: PLC0415 - imports torch

        return explain(experiment, self)
