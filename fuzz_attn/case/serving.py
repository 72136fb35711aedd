"""Serving: which cases look like what people serve, in the sizes of their model and in their batch."""

from __future__ import annotations

from typing import Final

from fuzz_attn.case.attention_case import CompileKey, compile_key_of
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import Sequence, is_fp8

HEAD_SIZES: Final = (64, 96, 128, 192, 256)
GROUP_SIZES: Final = (1, 4, 5, 8, 16)
BLOCK_SIZES: Final = (16, 32, 64, 128)
HALF_TYPES: Final = ("float16", "bfloat16")

FEWEST_NEW_TOKENS: Final = 64
"""New tokens of a chunk of a prompt, at least."""
LEAST_CONTEXT: Final = 256
"""Keys before the new tokens of a chunk, at least. A prefill beside decodes may have fewer."""
FEWEST_SEQUENCES: Final = 8
"""Sequences of a batch of decodes."""
LEAST_KEYS: Final = 512
"""Keys of each of them."""
FEWEST_BESIDE: Final = 4
"""Decodes beside a prefill."""
LEAST_KEYS_BESIDE: Final = 128
"""Keys of each of them."""
MOST_SPECULATIVE: Final = 8
"""New tokens of a sequence, its own and those that a speculative decoder proposes."""


def serves(key: CompileKey) -> bool:
    """Return whether a compile key has the types and sizes of a served model: half types, and perhaps an fp8 cache."""
    types = key.dtypes
    return (
        types.q in HALF_TYPES
        and types.out == types.q
        and (types.kv == types.q or is_fp8(types.kv))
        and key.head_size in HEAD_SIZES
        and key.num_queries_per_kv in GROUP_SIZES
        and (key.block_size == 1 if FAMILIES[key.family].cache.is_packed else key.block_size in BLOCK_SIZES)
    )


def is_scheduled(batch: tuple[Sequence, ...]) -> bool:
    """Return whether a batch is one that a scheduler makes, of sequences of usual lengths.

    It is one of these: a chunk of at least 64 new tokens of one sequence on at least 256 keys; at least 4 decodes of
    128 keys or more beside one prefill of at least 64 new tokens; at least 8 decodes of 512 keys or more each;
    sequences of 512 keys or more with 2 to 8 new tokens each, as in speculative decoding. Empty sequences do not count.
    """
    own = [sequence for sequence in batch if sequence.query_len]
    long = [sequence for sequence in own if sequence.query_len >= FEWEST_NEW_TOKENS]
    if any(sequence.context_len >= LEAST_CONTEXT for sequence in long):
        return True
    least = min((sequence.seq_len for sequence in own if sequence not in long), default=0)
    most = max((sequence.query_len for sequence in own), default=0)
    if len(long) == 1:
        decodes = sum(sequence.query_len == 1 for sequence in own)
        return decodes >= FEWEST_BESIDE and decodes == len(own) - 1 and least >= LEAST_KEYS_BESIDE
    if least < LEAST_KEYS or most > MOST_SPECULATIVE:
        return False
    return len(own) >= FEWEST_SEQUENCES or min(sequence.query_len for sequence in own) > 1


def looks_like_serving(case: CaseFields) -> bool:
    """Return whether a case has the types and sizes of a served model and a batch that a scheduler makes."""
    return is_scheduled(case.sequences) and serves(compile_key_of(case))
