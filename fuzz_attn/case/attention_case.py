"""AttentionCase: the whole input of one attention call as small, frozen, plain data.

A case holds recipes and a seed, never a tensor. :mod:`fuzz_attn.inputs.tensors` makes the tensors from them, bit for
bit the same on every machine. Cases compare by value, hash, and go into JSON files
(:mod:`fuzz_attn.counterexamples.counterexample`).

Vocabulary: a *row* is one (token, query head). ``context_len`` tokens of a sequence are in the cache before this step,
``query_len`` tokens are new, ``seq_len`` is their sum. Query token ``i`` is at position ``context_len + i``.
"""

from __future__ import annotations

import msgspec

from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.checks import LARGEST_FIRST_BLOCK, check_case
from fuzz_attn.case.compile_key import CompileKey, compile_key_of
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import FAR_GAP, FAR_STRIDES, Sequence, Strides, near_strides


class AttentionCase(CaseFields, frozen=True):
    """The whole input of one attention call. Raises :class:`CaseError` where its fields contradict each other."""

    def __post_init__(self) -> None:
        """Check the fields together; msgspec turns the error into one that names the place in the file."""
        super().__post_init__()
        check_case(self)

    @property
    def answers(self) -> tuple[bool, ...]:
        """For each sequence, whether the target writes its rows; all other rows stay unchanged."""
        interface, filtered = FAMILIES[self.family], self.filter_by_query_len
        return tuple(interface.answers(s.query_len, filter_by_query_len=filtered) for s in self.sequences)

    @property
    def reads_packed(self) -> tuple[bool, ...]:
        """For each sequence, whether the keys of its new tokens are read packed instead of from the cache."""
        return tuple(FAMILIES[self.family].reads_packed(s.query_len) for s in self.sequences)

    @property
    def compile_key(self) -> CompileKey:
        """The part of the case that decides whether a kernel is compiled anew."""
        return compile_key_of(self)


def replace(case: AttentionCase, **changes: object) -> AttentionCase:
    """Return the case with some fields changed, checked like a new one.

    With other sequences, rows that are far apart stay so: the last one lies about as many elements from the first.
    """
    if "sequences" in changes and "strides" not in changes:
        changes["strides"] = _as_far(case, changes["sequences"])  # type: ignore[arg-type]  # the field's type
    changed: AttentionCase = msgspec.structs.replace(case, **changes)
    return changed


def _as_far(case: AttentionCase, sequences: tuple[Sequence, ...]) -> Strides:
    """Return the strides with which as many rows as these sequences have reach as far as those of the case."""
    if case.strides == near_strides(case.strides):
        return case.strides
    gaps = {}
    for name in FAR_STRIDES:
        gap = getattr(case.strides, name)
        before, after = (_rows(name, each) - 1 for each in (case.sequences, sequences))
        if gap >= FAR_GAP and before > 0 and 0 < after != before:
            gaps[name] = max(FAR_GAP, -(-gap * before // (16 * after)) * 16)
    return msgspec.structs.replace(case.strides, **gaps)


def _rows(name: str, sequences: tuple[Sequence, ...]) -> int:
    """Return the rows, of a tensor with far rows, that belong to the batch."""
    return len(sequences) if name == "block_table" else sum(sequence.query_len for sequence in sequences)


def replace_layout(
    case: AttentionCase, *, family: Family | None = None, strides: Strides | None = None, **changes: object
) -> AttentionCase:
    """Return the case with another family or other strides, and other fields changed.

    Large offsets stay about as many elements into the caches, so page numbers change with the size of a page.
    """
    family, strides = family or case.family, strides or case.strides
    if case.pages.first_block:
        sizes = case.heads, case.pages.block_size, case.dtypes.kv
        before = max(case.cache_layout.page_strides)
        after = max(FAMILIES[family].cache.layout(*sizes, strides).page_strides)
        first_block = min(-(-case.pages.first_block * before // after), LARGEST_FIRST_BLOCK)
        changes["pages"] = msgspec.structs.replace(case.pages, first_block=first_block)
    return replace(case, family=family, strides=strides, **changes)
