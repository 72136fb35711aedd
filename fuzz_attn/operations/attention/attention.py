"""Attention as an operation: what the house asks of it, from the packages that know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from fuzz_attn.case import changes
from fuzz_attn.case.aspect_table import TABLE
from fuzz_attn.case.aspects import (
    FEATURES,
    FEATURES_OF,
    FP8_OUTPUT,
    POISONS,
    SIMPLEST_SIZE,
    Aspect,
    all_features_of,
    features_of,
    words_of,
)
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.contract_trial import named_of
from fuzz_attn.case.description import Line, describe
from fuzz_attn.case.domain import Domain, unpromised
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import Sequence as Tokens
from fuzz_attn.case.parts import is_fp8
from fuzz_attn.case.paths import FIRST_CONFIGURATION, in_words
from fuzz_attn.case.plain import counted
from fuzz_attn.case.serving import looks_like_serving
from fuzz_attn.errors import CaseError
from fuzz_attn.operations.operation import (
    Active,
    Batch,
    Drawing,
    ExcludesKey,
    Lengths,
    Operation,
    Refusals,
    RoundSize,
    SharedRound,
    tensor_roles,
)
from fuzz_attn.properties.relations import RELATIONS, chosen_relation, has_second_case, second_case

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.binding.binding import Binding
    from fuzz_attn.case.aspect_table import NotDrawn
    from fuzz_attn.case.parts import DTypes
    from fuzz_attn.forensics.explanation import Explanation, FirstOperation
    from fuzz_attn.inputs.random_bits import Floats
    from fuzz_attn.oracle.verdict import Verdict
    from fuzz_attn.properties.comparisons import Comparison
    from fuzz_attn.properties.experiment import Experiment
    from fuzz_attn.targets.target import Target

FEW: Final = 16
"""The most numbers that a report lists of one tensor."""
SMALL_PAGES: Final = (2, 1, 4)
MOST_OF_KEYS: Final = 2**20
"""Elements of the keys of all query heads of a case that is made with more keys than it was drawn with."""


class Attention(Operation):
    """Paged attention, of all families; a case is an :class:`AttentionCase`."""

    name = "attention"
    families: ClassVar = {family: interface.words for family, interface in FAMILIES.items()}
    case_type = AttentionCase
    domain_type = Domain
    aspects = TABLE
    features: ClassVar[dict[str, Aspect]] = {str(name): aspect for name, aspect in FEATURES.items()}
    relations = RELATIONS
    poisons = POISONS
    tensor_roles = tensor_roles(
        {
            "seq_lens": "lengths",
            "query_lens": "lengths",
            "context_lens": "lengths",
            "query_start_loc": "indices",
            "key_start_loc": "indices",
            "block_table": "indices",
            "kv_indptr": "indices",
            "kv_indices": "indices",
            "slot_table": "indices",
            "request_ids": "indices",
            "mask_indptr": ("indices", "custom_mask"),
            "query": "numbers",
            "batched_query": "numbers",
            "new_keys": "numbers",
            "new_values": "numbers",
            "key_cache": "cache",
            "value_cache": "cache",
            "latent_cache": "cache",
            "output": "output",
            "lse": ("sums", "lse"),
            "custom_mask": ("mask", "custom_mask"),
            "replacing_mask": ("mask", "custom_mask"),
            "alibi_slopes": ("vector", "alibi"),
            "sinks": ("vector", "sinks"),
            "qq_bias": ("bias", "qq_bias"),
            "q_scale": ("scale", "fp8_q"),
            "k_scale": ("scale", "fp8_q fp8_kv"),
            "v_scale": ("scale", "fp8_q fp8_kv"),
            "out_scale": ("scale", "fp8_out"),
        }
    )
    fp8_output = FP8_OUTPUT
    is_exported = True
    has_tolerances = True

    def features_of(self, case: AttentionCase) -> tuple[str, ...]:
        """Return the names of the features that identify a failure of the case, in a fixed order."""
        return (*named_of(case), *features_of(case))

    def all_features_of(self, case: AttentionCase) -> frozenset[str]:
        """Return the names of all features of the case."""
        return frozenset(all_features_of(case))

    def traits_of(self, case: AttentionCase, relation: str | None = None) -> frozenset[str]:
        """Return the traits of a case and of the second launch of its relation, the first configuration among them."""
        found = super().traits_of(case, relation)
        return found if case.launch.configuration else found | {FIRST_CONFIGURATION}

    def launch_path(self, case: AttentionCase) -> str:
        """Return the launch path that a case asks for."""
        return case.launch.path

    def described(self, case: AttentionCase) -> list[Line]:
        """Return a case as (what, words) pairs."""
        return describe(case)

    def numbers(self, case: AttentionCase) -> list[Line]:
        """Return slopes and sinks by head, and the bias row by row; nothing for more than a few.

        Sinks are those before their rounding to the recipe's type.
        """
        if case.alibi is None and case.qq_bias is None and case.sinks is None:
            return []
        from fuzz_attn.inputs import numbers as made  # noqa: PLC0415 - imports numpy, which the other commands do without

        found: list[tuple[str, Floats]] = []
        if case.alibi is not None:
            found.append(("slopes", made.alibi_slopes(case.alibi, case)))
        if case.qq_bias is not None and case.max_query_len**2 <= FEW:
            matrix = made.qq_bias(case.qq_bias, case)
            found.append(("bias values", matrix[:, : matrix.shape[0]]))
        if case.sinks is not None:
            found.append(("sink values", made.sinks(case.sinks, case)))
        return [(what, _listed(numbers)) for what, numbers in found if numbers.size <= FEW]

    def sizes_in_words(self, case: AttentionCase) -> tuple[str, ...]:
        """Return the numbers of sequences, query tokens and keys."""
        sizes = (len(case.sequences), "sequence"), (case.num_tokens, "query token"), (case.total_keys, "key")
        return tuple(counted(number, noun) for number, noun in sizes)

    def ratio_type(self, case: AttentionCase) -> str:
        """Return the type of the queries, or that the output is fp8."""
        return "fp8 output" if is_fp8(case.dtypes.out) else case.dtypes.q

    def has_fp8_output(self, case: AttentionCase) -> bool:
        """Return whether the output has an fp8 type."""
        return is_fp8(case.dtypes.out)

    def is_served(self, case: AttentionCase) -> bool:
        """Return whether a case looks like what people serve."""
        return looks_like_serving(case)

    def batch_of(self, case: AttentionCase) -> Batch:
        """Return the sequences of the batch."""
        is_packed = FAMILIES[case.family].cache.is_packed
        lengths = tuple((max(0, sequence.context_len), sequence.query_len) for sequence in case.sequences)
        return Batch(lengths, 0 if is_packed else case.pages.block_size)

    def lengths_of(self, case: AttentionCase) -> Iterable[tuple[str, int]]:
        """Return the lengths of the sequences, and all keys."""
        for sequence in case.sequences:
            yield "query tokens", sequence.query_len
            yield "tokens in the cache before", max(0, sequence.context_len)
        yield "keys of a case", case.total_keys

    def sizes_of(self, case: AttentionCase) -> Iterable[tuple[str, int]]:
        """Return the sizes of batch, heads, pages and launch."""
        return (
            ("sequences", len(case.sequences)),
            ("KV heads", case.heads.num_kv_heads),
            ("query heads of a KV head", case.heads.num_queries_per_kv),
            ("head size", case.heads.head_size),
            ("slots of a page", case.pages.block_size),
            ("keys of a tile (0: the launcher's choice)", case.launch.tile_size),
            ("segments (0: the launcher's choice)", case.launch.num_segments),
        )

    def types_of(self, case: AttentionCase) -> Iterable[tuple[str, str]]:
        """Return the types of queries, caches and output."""
        return (("q", case.dtypes.q), ("kv", case.dtypes.kv), ("out", case.dtypes.out))

    def unpromised(self, case: AttentionCase, domain: Domain) -> str:
        """Return what of a case its target does not promise, in words; an empty string where it promises all."""
        return unpromised(case, domain)

    def allows(self, case: AttentionCase, relation: str | None, domain: Domain) -> bool:
        """Return whether a case and its compile key lie in a domain and its relation holds."""
        from hypothesis.errors import InvalidArgument  # noqa: PLC0415 - only what draws or shrinks needs it

        from fuzz_attn.strategies.compile_keys import check_key  # noqa: PLC0415 - as above

        if self.unpromised(case, domain):
            return False
        try:
            check_key(case.compile_key, domain=domain)
        except InvalidArgument:
            return False
        return relation is None or RELATIONS[relation].holds(case, domain)

    def simplicity(self, case: AttentionCase) -> tuple[float, ...]:
        """Return a key by which few and short sequences come first, then small heads, then small numbers."""
        heads, pages = case.heads, case.pages
        return (
            len(case.sequences),
            case.total_keys,
            case.num_tokens,
            heads.num_query_heads,
            heads.num_kv_heads,
            abs(heads.head_size - SIMPLEST_SIZE) + abs(pages.block_size - SIMPLEST_SIZE),
            case.window + case.launch.num_segments + case.launch.tile_size + abs(case.softcap - 1.0),
            case.padded_tokens + sum(map(_number, (*_fields_of(case.strides), *_fields_of(case.pages)))),
        )

    def harmless(self, case: AttentionCase, places: Iterable[str]) -> AttentionCase:
        """Return the case with zeros as the poison of some places."""
        return replace(case, poison=msgspec.structs.replace(case.poison, **dict.fromkeys(places, "zero")))

    def is_harmless(self, case: AttentionCase, place: str) -> bool:
        """Return whether the poison of a place is zeros."""
        return bool(getattr(case.poison, place) == "zero")

    def parts(self, case: AttentionCase) -> int:
        """Return the number of sequences."""
        return len(case.sequences)

    def with_parts(self, case: AttentionCase, kept: Sequence[int]) -> AttentionCase:
        """Return the case with some of its sequences; overrides move with theirs."""
        places = {old: new for new, old in enumerate(kept)}
        overrides = tuple(
            msgspec.structs.replace(override, sequence=places[override.sequence])
            for override in case.overrides
            if override.sequence in places
        )
        return replace(case, sequences=tuple(case.sequences[index] for index in kept), overrides=overrides)

    def shorter(self, case: AttentionCase, part: int, number: int) -> Lengths | None:
        """Return cases with a shorter query of as many keys, with a shorter context, or with a shorter query only."""
        if number >= len(_SHORTER):
            return None
        sequence = case.sequences[part]
        low, high, resized = _SHORTER[number](sequence)

        def with_length(length: int) -> AttentionCase:
            sequences = list(case.sequences)
            sequences[part] = resized(length)
            return replace(case, sequences=tuple(sequences))

        return Lengths(low, high, with_length)

    def with_keys(self, case: AttentionCase, number: int) -> AttentionCase:
        """Return the case with its first sequence only, of so many keys and one new token."""
        if number * case.heads.num_query_heads * case.heads.head_size > MOST_OF_KEYS:
            raise CaseError(f"a sequence of {number} keys takes too long")
        first = self.with_parts(case, (0,)) if case.sequences else case
        return replace(first, sequences=(Tokens(1, number - 1),))

    def with_smaller_blocks(self, case: AttentionCase) -> Iterator[Callable[[AttentionCase], AttentionCase]]:
        """Yield changes to smaller pages, as many as before, where a sequence has more than one."""
        if case.max_seq_len > case.pages.block_size:
            for size in SMALL_PAGES:
                if size < case.pages.block_size:
                    yield partial(changes.with_page_size, size=size)

    def without_padding(self, case: AttentionCase) -> AttentionCase:
        """Return the case without padded tokens and further rows of the output."""
        return replace(case, padded_tokens=0, form=msgspec.structs.replace(case.form, extra_output_rows=0))

    def has_second_case(self, relation: str) -> bool:
        """Return whether the second launch of a relation is like a case of its own."""
        return has_second_case(relation)

    def second_case(self, case: AttentionCase, relation: str) -> AttentionCase:
        """Return a case like the second launch of a relation."""
        return second_case(case, relation)

    def drawing_of_round(
        self,
        domain: Domain,
        round_seed: int,
        size: RoundSize,
        excludes: ExcludesKey | None = None,
        covered: Collection[int] = (),
    ) -> Drawing:
        """Return what a round draws."""
        from fuzz_attn.operations.attention.drawing import drawing_of_round  # noqa: PLC0415 - imports Hypothesis

        return drawing_of_round(domain, round_seed, size, excludes, covered)

    def strategy(self, domain: Domain, wanted: Mapping[str, Any]) -> SearchStrategy[AttentionCase]:
        """Return a strategy of all cases of a domain, with some values of their compile keys."""
        from fuzz_attn.operations.attention.drawing import cases_of  # noqa: PLC0415 - imports Hypothesis

        return cases_of(domain, wanted)

    def shared_round(self, domain: Domain, campaign: int, number: int, covered: Collection[int] = ()) -> SharedRound:
        """Return a round that the shards of a campaign can share."""
        from fuzz_attn.operations.attention.drawing import shared_round  # noqa: PLC0415 - imports Hypothesis

        return shared_round(domain, campaign, number, covered)

    def drawing_of_shared(self, domain: Domain, shared: Any) -> Drawing:
        """Return what a shared round draws."""
        from fuzz_attn.operations.attention.drawing import drawing_of_shared  # noqa: PLC0415 - imports Hypothesis

        return drawing_of_shared(domain, shared)

    def may_play(self, shared: Any, domain: Domain, excludes: ExcludesKey | None) -> bool:
        """Return whether a shared round lies within what is left of a domain."""
        from fuzz_attn.operations.attention.drawing import may_play  # noqa: PLC0415 - imports Hypothesis

        return may_play(shared, domain, excludes)

    def chosen_relation(self, choice: int, case: AttentionCase, domain: Domain, among: Collection[str]) -> str:
        """Return one of the relations that hold for a case."""
        return chosen_relation(choice, case, domain, among)

    def uncovered(self, domain: Domain, covered: Collection[int]) -> tuple[int, int]:
        """Return how many compile keys of a domain are not covered, and how many there are."""
        from fuzz_attn.operations.attention.drawing import uncovered  # noqa: PLC0415 - imports Hypothesis

        return uncovered(domain, covered)

    def refusals(self, domain: Domain) -> Refusals:
        """Return what a campaign knows at first of the refusals of a target."""
        from fuzz_attn.operations.attention.refusals import Rules  # noqa: PLC0415 - imports Hypothesis

        return Rules(domain)

    def load_target(self, name: str, family: str | None, binding: Binding | None) -> Target:
        """Return the target that a specification names."""
        from fuzz_attn.targets.loading import load_target  # noqa: PLC0415 - imports torch

        return load_target(name, family, binding)

    def parameters_of(self, binding: Binding, reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Return a row for each parameter of a target: its name, its role in words, and why it has that."""
        from fuzz_attn.binding.binding import parameters_of  # noqa: PLC0415 - only few commands need it

        return list(parameters_of(binding, reasons))

    def conventions_of(self, binding: Binding) -> list[str]:
        """Return layout, output and the other conventions of a target, in sentences."""
        from fuzz_attn.binding.binding import conventions_of  # noqa: PLC0415 - as above

        return list(conventions_of(binding))

    def calibrated(self, target: Target, backend: Backend) -> tuple[Target, tuple[str, ...]]:
        """Return a target with its whole binding, and what was learned in sentences."""
        from fuzz_attn.calibration.calibrate import calibrated  # noqa: PLC0415 - imports torch

        return calibrated(target, backend)

    def not_drawn(self, promised: Domain, domain: Domain, target: Target) -> NotDrawn:
        """Return why features of the family are not in the domain."""
        from fuzz_attn.binding.promises import not_drawn  # noqa: PLC0415 - imports torch

        return not_drawn(promised, domain, target.match.binding)

    def easy_case(self, domain: Domain) -> AttentionCase | None:
        """Return the plain case of the easiest size that a domain has."""
        from fuzz_attn.calibration.easy_cases import plain_case, sizes  # noqa: PLC0415 - imports torch

        return plain_case(domain.family, next(sizes(domain)))

    def first_operation(
        self, experiment: Experiment, relation: str | None, healthy: Target, active: Active
    ) -> FirstOperation:
        """Return the first operation of a kernel that gives another value in a healthy target."""
        from fuzz_attn.forensics.first_operation import first_operation  # noqa: PLC0415 - imports torch

        return first_operation(experiment, relation, healthy, active)

    def limits_of(self, domain: Domain) -> dict[str, str]:
        """Return types, sizes, features and paths, then the limits that most targets do not have."""
        unlimited = Domain()
        together = (" and ".join(words_of(each)) for each in domain.excluded)
        limits = {
            "types of caches": ", ".join(domain.cache_dtypes) * (domain.cache_dtypes != unlimited.cache_dtypes),
            "types of the output": ", ".join(domain.output_dtypes) * (domain.output_dtypes != unlimited.output_dtypes),
            "segments": _range(domain.segments) * (domain.segments != unlimited.segments),
            "not together": "; ".join(together),
            "ALiBi slopes": ", ".join(domain.alibi_kinds) * (domain.alibi_kinds != unlimited.alibi_kinds),
            "configurations": str(domain.configurations) * (domain.configurations > 1),
            "optional arguments": ", ".join(
                in_words([(name, value)]) for name, values in domain.arguments for value in values
            ),
        }
        return {
            "types of q": ", ".join(domain.dtypes),
            "head sizes": _range(domain.head_sizes),
            "page sizes": _range(domain.block_sizes),
            "group sizes": _range(domain.group_sizes),
            "features": ", ".join(sorted(domain.features & FEATURES_OF[domain.family])) or "none",
            "launch paths": ", ".join(domain.paths),
            **{what: value for what, value in limits.items() if value},
        }

    def dtypes_of(self, case: AttentionCase) -> DTypes:
        """Return the types by which the arithmetic of a target's kernels is read."""
        return case.dtypes

    def experiment(
        self, case: AttentionCase, target: Target, backend: Backend, *, strict: bool = True, host_only: bool = False
    ) -> Experiment:
        """Return the experiment of a case on a target."""
        from fuzz_attn.properties.experiment import Experiment  # noqa: PLC0415 - imports torch

        return Experiment(case, target, backend, strict=strict, host_only=host_only)

    def digest(self, case: AttentionCase) -> str:
        """Return 16 hexadecimal digits of the tensors of a case."""
        from fuzz_attn.inputs.tensors import digest_of, materialise  # noqa: PLC0415 - imports torch

        return digest_of(materialise(case))

    def failures(self, experiment: Experiment, relation: str | None) -> tuple[Verdict, ...]:
        """Return every failed verdict of an experiment and one relation, else only the oracle's."""
        from fuzz_attn.properties.check import all_failures  # noqa: PLC0415 - imports torch

        return all_failures(experiment, relation)

    def compare(self, relation: str, experiment: Experiment) -> Comparison:
        """Return the second launch of a relation, and what it must give."""
        from fuzz_attn.properties.check import comparison_of  # noqa: PLC0415 - imports torch

        return comparison_of(relation, experiment)

    def with_causes(self, verdict: Verdict, experiment: Experiment) -> Verdict:
        """Return a failed verdict with the paths, the compiler's options, the poison or the rounding that it needs."""
        from fuzz_attn.properties import named_causes  # noqa: PLC0415 - imports torch

        verdict = named_causes.with_options_named(named_causes.with_poison_named(verdict, experiment), experiment)
        if not (verdict.poison or verdict.hint):
            verdict = named_causes.with_rounding_named(verdict, experiment)
        return named_causes.with_paths_named(verdict, experiment)

    def explain(self, experiment: Experiment, relation: str | None) -> Explanation:
        """Return which key, row, head or factor the kernel gets wrong."""
        from fuzz_attn.forensics.explain import explain  # noqa: PLC0415 - imports torch

        return explain(experiment, relation)

    def near_case(self, case: AttentionCase, number: int) -> AttentionCase:
        """Return a case with the features of another one and other lengths, heads and strides."""
        from fuzz_attn.forensics.near_cases import near_attention  # noqa: PLC0415 - few need it

        return near_attention(case, number)


def _range(bounds: tuple[int, ...]) -> str:
    if len(bounds) == 2:
        return f"{bounds[0]} to {bounds[1]}"
    return ", ".join(str(bound) for bound in bounds)


def _listed(numbers: Floats) -> str:
    rows = (", ".join(f"{number:.6g}" for number in row) for row in numbers.reshape(-1, numbers.shape[-1]).tolist())
    return "; ".join(rows)


def _fields_of(part: msgspec.Struct) -> tuple[object, ...]:
    return msgspec.structs.astuple(part)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _with_queries(sequence: Tokens) -> tuple[int, int, Callable[[int], Tokens]]:
    """Fewer query tokens of as many keys: the others become context."""
    return 1, sequence.query_len, lambda length: Tokens(length, sequence.seq_len - length)


def _with_context(sequence: Tokens) -> tuple[int, int, Callable[[int], Tokens]]:
    return 0, sequence.context_len, lambda length: Tokens(sequence.query_len, length)


def _with_queries_before(sequence: Tokens) -> tuple[int, int, Callable[[int], Tokens]]:
    """Fewer query tokens after as long a context."""
    return 1, sequence.query_len, lambda length: Tokens(length, sequence.context_len)


_SHORTER: Final = (_with_queries, _with_context, _with_queries_before)
