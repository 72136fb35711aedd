"""The rows of a block of queries: which tokens and heads they are, of which sequence of a ragged batch, and where."""

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


class Tokens(NamedTuple):
    """A dense tensor with one row for each query token and head; its last stride is 1."""

    ptr: tl.tensor  # [num_tokens, num_query_heads, head_size]
    stride_token: tl.tensor  # scalar
    stride_head: tl.tensor  # scalar


class Rows(NamedTuple):
    """The rows of a block, each a pair of query token and query head."""

    query: tl.tensor  # [BLOCK_M], the token counted inside of the sequence
    token: tl.tensor  # [BLOCK_M], the token counted inside of the batch, int64
    head: tl.tensor  # [BLOCK_M]
    mask: tl.tensor  # [BLOCK_M], false for surplus rows


class Dims(NamedTuple):
    """The elements of a head, padded to a power of two."""

    offset: tl.tensor  # [HEAD_SIZE_PADDED]
    mask: tl.tensor  # [HEAD_SIZE_PADDED], false for padding


@triton.jit
def q_block_rows(
    first_query,
    sequence,  # Sequence
    kv_head,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    NUM_QUERIES_PER_KV: tl.constexpr,
):
    """Return the Rows of BLOCK_Q tokens from `first_query` on, with all query heads of one KV head.

    Rows from BLOCK_Q * NUM_QUERIES_PER_KV on are surplus, as the group need not be a power of two. They are masked
    because their tokens belong to the next block.
    """
    row = tl.arange(0, BLOCK_M)
    query = first_query + row // NUM_QUERIES_PER_KV
    head = kv_head * NUM_QUERIES_PER_KV + row % NUM_QUERIES_PER_KV
    row_mask = (row < BLOCK_Q * NUM_QUERIES_PER_KV) & (query < sequence.query_len)
    token = (sequence.query_start + query).to(tl.int64)
    return Rows(query, token, head, row_mask)


@triton.jit
def head_dims(HEAD_SIZE: tl.constexpr, HEAD_SIZE_PADDED: tl.constexpr):
    """Return the Dims of a head."""
    dim = tl.arange(0, HEAD_SIZE_PADDED)
    return Dims(dim, dim < HEAD_SIZE)


@triton.jit
def row_offsets(tokens, rows):
    """Return the int64 offset [BLOCK_M] of the first element of each row."""
    return rows.token * tokens.stride_token + rows.head * tokens.stride_head


@triton.jit
def load_queries(queries, rows, dims, DTYPE: tl.constexpr):
    """Return the queries [BLOCK_M, HEAD_SIZE_PADDED] as dot operand of DTYPE, 0 where a mask is false."""
    return tl.load(
        queries.ptr + row_offsets(queries, rows)[:, None] + dims.offset[None, :],
        mask=rows.mask[:, None] & dims.mask[None, :],
        other=0.0,
    ).to(DTYPE)
