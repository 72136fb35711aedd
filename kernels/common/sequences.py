"""Sequences of a ragged batch: which sequence a program serves, where it begins, how long it is."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl


class Batch(NamedTuple):
    """The sequences of a batch."""

    query_start_loc_ptr: tl.tensor  # [num_seqs + 1], or None where token i is sequence i
    seq_lens_ptr: tl.tensor  # [num_seqs]
    block_table_ptr: tl.tensor  # [num_seqs, max_blocks], or None for a kernel that reads no cache


class Sequence(NamedTuple):
    """The position of one sequence in the batch, in tokens."""

    query_start: tl.tensor  # scalar, the first query token
    query_len: tl.tensor  # scalar
    context_len: tl.tensor  # scalar


@triton.jit
def cdiv_fn(x, y):
    """Return x / y rounded up, for x >= 0 and y > 0."""
    return (x + y - 1) // y


@triton.jit
def first_q_block(query_start, seq_idx, BLOCK_Q: tl.constexpr):
    """Return the number of q-blocks reserved for the sequences before `seq_idx`.

    Rounding down leaves one block too few for a sequence with a remainder; `+ seq_idx` adds one block for each
    sequence. The whole batch therefore needs at most `num_tokens // BLOCK_Q + num_seqs` blocks, and the host computes
    the grid without reading the device.
    """
    return query_start // BLOCK_Q + seq_idx


@triton.jit
def find_seq_idx(query_start_loc_ptr, target_idx, num_seqs, BLOCK_Q: tl.constexpr, USE_Q_BLOCKS: tl.constexpr):
    """Return the sequence that contains q-block (or, without USE_Q_BLOCKS, query token) `target_idx`.

    This is the last sequence that starts at or before the target. A target past the end belongs to the last sequence;
    an empty sequence contains no token. `num_seqs` must be at least 1.
    """
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        start = tl.load(query_start_loc_ptr + middle)
        if USE_Q_BLOCKS:
            start = first_q_block(start, middle, BLOCK_Q)
        if start <= target_idx:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def load_sequence(batch, seq_idx):
    """Return the Sequence `seq_idx`."""
    query_start = tl.load(batch.query_start_loc_ptr + seq_idx)
    query_len = tl.load(batch.query_start_loc_ptr + seq_idx + 1) - query_start
    context_len = tl.load(batch.seq_lens_ptr + seq_idx) - query_len
    return Sequence(query_start, query_len, context_len)


@triton.jit
def load_decode(batch, seq_idx, FILTER_BY_QUERY_LEN: tl.constexpr):
    """Return the Sequence `seq_idx` of a batch of decodes.

    Without FILTER_BY_QUERY_LEN, token i belongs to sequence i, and sequence i is empty if its length is 0.
    """
    if FILTER_BY_QUERY_LEN:
        query_start, query_len, context_len = load_sequence(batch, seq_idx)
    else:
        seq_len = tl.load(batch.seq_lens_ptr + seq_idx)
        query_start = seq_idx
        query_len = tl.minimum(seq_len, 1)
        context_len = seq_len - query_len
    return Sequence(query_start, query_len, context_len)
