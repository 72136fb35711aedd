"""Sizes of blocks and tiles for all families: pure functions of host numbers.

These sizes affect speed only. Every size within the documented ranges gives the same result up to rounding.
"""

import torch

MIN_BLOCK_M = 16
PREFILL_BLOCK_M = 64
MAX_TILE_SIZE = 128
# Shared memory for the tiles in flight of one program; two programs fit into Hopper's 227 KiB.
PIPELINE_BYTES = 96 * 1024


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two >= `number`, at least 1."""
    return 1 << max(number - 1, 0).bit_length()


def ceil_div(number: int, divisor: int) -> int:
    """Return number / divisor rounded up."""
    return -(-number // divisor)


def block_m_for(num_queries_per_kv: int, max_seqlen_q: int = 1) -> int:
    """Return the rows of a q-block: a power of two, at least 16 and at least the group of one token.

    Prefill takes 64, to give the tensor cores enough rows; in decode and short chunks most of 64 rows would be empty.
    """
    smallest = max(MIN_BLOCK_M, next_power_of_two(num_queries_per_kv))
    if max_seqlen_q * num_queries_per_kv >= PREFILL_BLOCK_M:
        return max(smallest, PREFILL_BLOCK_M)
    return smallest


def head_size_padded_for(head_size: int, q_dtype: torch.dtype) -> int:
    """Return the head dimension of the tiles: the next power of two, at least 16, at least 32 for a one-byte q."""
    return max(smallest_dot_size(q_dtype), next_power_of_two(head_size))


def value_size_padded_for(value_size: int, head_size: int, block_m: int, q_dtype: torch.dtype) -> int:
    """Return the value dimension of the tiles where values may be smaller than keys: as for a head, or more.

    For Hopper's asynchronous dots, of 64 rows or more, a row of V has as many bytes as a row of K, up to 128. With
    narrower rows of V in the same memory, ptxas 12.8 (in Triton 3.6) computes the addresses of V wrongly from the
    second 16 keys of a tile on.
    """
    padded, key_padded = head_size_padded_for(value_size, q_dtype), head_size_padded_for(head_size, q_dtype)
    return padded if block_m < PREFILL_BLOCK_M or q_dtype.itemsize != 2 else max(padded, min(key_padded, 64))


def smallest_dot_size(q_dtype: torch.dtype) -> int:
    """Return the smallest head dimension and tile size: tensor cores take 16 two-byte or 32 one-byte elements."""
    return max(16, 32 // q_dtype.itemsize)


def operand_bytes(q_dtype: torch.dtype) -> int:
    """Return the bytes of an operand of a dot product: two at least, as the kernels multiply no fp8 values."""
    return max(2, q_dtype.itemsize)


def tile_size_for(head_size: int, q_dtype: torch.dtype, is_decode: bool) -> int:
    """Return the default number of keys in a tile: larger for prefill, smaller where a key takes many bytes."""
    key_bytes = head_size_padded_for(head_size, q_dtype) * operand_bytes(q_dtype)
    if key_bytes > 512:
        return 16
    return 32 if is_decode or key_bytes > 256 else 64


def compiler_options(block_m: int, head_size_padded: int, tile_size: int, q_dtype: torch.dtype) -> dict[str, int]:
    """Return num_warps and num_stages: more warps for large accumulators, as many stages as shared memory holds."""
    num_warps = 8 if block_m * head_size_padded >= 64 * 256 else 4
    stage_bytes = 2 * tile_size * head_size_padded * operand_bytes(q_dtype)
    return {"num_warps": num_warps, "num_stages": max(1, min(3, PIPELINE_BYTES // stage_bytes))}
