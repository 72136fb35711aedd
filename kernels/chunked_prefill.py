"""The launcher of a mixed batch over split caches: context attention for the chunks, then paged decode for the rest."""

import torch

from .common.split_call import SplitCall, check_split_call
from .context_attention import launch_context
from .paged_attention import launch_decode

NAMES = {"new_keys": "key", "new_values": "value"}


def chunked_prefill_paged_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    kv_cache_dtype: str,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    max_query_len: int,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    sliding_window: int | None = None,
    sm_scale: float | None = None,
    output_scale: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    tile_size: int | None = None,
) -> None:
    """Write the attention of every query token into `output`, with one kernel for chunks and one for decodes.

    Sequences with more than one query token go through context attention, which reads their new tokens from `key` and
    `value`; those with exactly one go through paged decode, which reads all keys from the caches, the new one included.
    `context_attention_fwd` and `paged_attention_decode` document each argument in full.

    Args:
        query: `[T, Hq, D]` float32, float16 or bfloat16.
        key: keys of the query tokens, `[T or more, Hkv, D]` of the query's dtype.
        value: values of the query tokens, as `key`.
        output: `[T or more, Hq, D]`.
        kv_cache_dtype: "auto", "fp8" or "fp8_e4m3", "fp8_e5m2".
        key_cache: `[num_blocks, Hkv, D // x, block_size, x]`.
        value_cache: `[num_blocks, Hkv, D, block_size]`.
        block_table: `[B or more, max_blocks]` int32.
        query_start_loc: `[B + 1]` int32.
        seq_lens: `[B]` int32.
        max_seq_len: the longest sequence, in tokens. Not needed; part of the published signature.
        max_query_len: the most query tokens of one sequence; with 1, context attention is not launched.
        k_scale: one float32 element or None.
        v_scale: one float32 element or None.
        alibi_slopes: `[Hq]` float.
        sliding_window: None, 0 and -1 are no window.
        sm_scale: factor on the dot products; None is D ** -0.5.
        output_scale: one float32 element, for an fp8 output.
        sinks: `[Hq]` float.
        tile_size: keys in a tile of both kernels, a power of two from 16 to 128. None lets heuristics choose.

    Raises:
        ContractError: an argument is outside of the above. Lengths, page numbers and scales on the device are not read.

    """
    call = SplitCall(
        query=query,
        output=output,
        new_keys=key,
        new_values=value,
        key_cache=key_cache,
        value_cache=value_cache,
        block_table=block_table,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        max_seq_len=max_seq_len,
        max_query_len=max_query_len,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_cache_dtype=kv_cache_dtype,
        alibi_slopes=alibi_slopes,
        sliding_window=sliding_window,
        sm_scale=sm_scale,
        output_scale=output_scale,
        sinks=sinks,
        tile_size=tile_size,
        names=NAMES,
    )
    check_split_call(call, needs_starts=True, needs_new_tokens=True)
    if max_query_len > 1:
        launch_context(call, skip_decode=True)
    launch_decode(call, filter_by_query_len=True)
