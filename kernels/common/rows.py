"""The rows of a block of queries: which tokens and heads they are, and their addresses."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl


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
