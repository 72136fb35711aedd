"""AttentionCase: the whole input of one attention call as small, frozen, plain data.

A case holds recipes and a seed, never a tensor. :mod:`fuzz_attn.inputs.tensors` makes the tensors from them, bit for
bit the same on every machine. Cases compare by value, hash, and go into JSON files
(:mod:`fuzz_attn.counterexamples.counterexample`).

Vocabulary: a *row* is one (token, query head). ``context_len`` tokens of a sequence are in the cache before this step,
``query_len`` tokens are new, ``seq_len`` is their sum. Query token ``i`` is at position ``context_len + i``.
"""

from __future__ import annotations

from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.changes import replace, replace_layout
from fuzz_attn.case.checks import check_case
from fuzz_attn.case.compile_key import CompileKey, compile_key_of
from fuzz_attn.case.families import FAMILIES

__all__ = ("AttentionCase", "replace", "replace_layout")


class AttentionCase(CaseFields, frozen=True):
    """The whole input of one attention call; raises ``CaseError`` where its fields contradict each other."""

    def __post_init__(self) -> None:
        """Check the fields together; msgspec turns the error into one that names the place in the file."""
        super().__post_init__()
        check_case(self)

    @property
    def answers(self) -> tuple[bool, ...]:
        """For each sequence, whether the target writes its rows; all other rows stay unchanged."""
        interface, filtered = FAMILIES[self.family], self.filter_by_query_len
        return tuple(
            interface.answers(s.query_len, filter_by_query_len=filtered)
            and (interface.answers_no_key or not s.has_no_key)
            for s in self.sequences
        )

    @property
    def reads_packed(self) -> tuple[bool, ...]:
        """For each sequence, whether the keys of its new tokens are read packed instead of from the cache."""
        return tuple(FAMILIES[self.family].reads_packed(s.query_len) for s in self.sequences)

    @property
    def compile_key(self) -> CompileKey:
        """The part of the case that decides whether another kernel must be compiled."""
        return compile_key_of(self)
