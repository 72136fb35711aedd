"""The launcher of extend attention: new tokens in dense tensors, their contexts by a list of slots, and masks."""

import torch

from .common.arguments import Tiling, Variant, kernel_window, output_arguments
from .common.contract import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    ContractError,
    check_head_vector,
    check_heads,
    check_output_scale,
    check_queries,
    check_tensors,
    check_tile_size,
    require_dtype,
    require_finite,
    require_one_element,
    require_range,
    require_shape,
    require_unit_stride,
)
from .common.extend_kernel import CustomMask, MaskVariant, Slots, kernel_extend_attention
from .common.launch import block_m_for, ceil_div, compiler_options, head_size_padded_for, tile_size_for
from .common.paged_cache import Scales
from .common.rows import Tokens
from .common.scores import Scores

INDEX_DTYPES = (torch.int32, torch.int64)
MASK_DTYPES = (torch.bool, torch.uint8)


def extend_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    max_len_extend: int,
    sm_scale: float | None = None,
    is_causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    custom_mask: torch.Tensor | None = None,
    mask_indptr: torch.Tensor | None = None,
    *,
    top_left: bool = False,
    chunk_size: int = 0,
    logit_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
    tile_size: int | None = None,
) -> None:
    """Write the attention of every new token over its context and the new tokens of its sequence into `out`.

    Key j of a sequence is key j of its context, or from the context length C on new token j - C. New token i is at
    position p = C + i. It sees the keys that all masks below allow; the output of a token that sees none is 0.

    Shapes: num_tokens T, num_query_heads Hq, num_kv_heads Hkv, head_size D (1 to 256), num_seqs B; Hq / Hkv is an
    integer from 1 to 64. The last dimension of every tensor has stride 1, all other strides are free.

    Args:
        q: `[T, Hq, D]` float32, float16 or bfloat16. Sequence i owns tokens `[qo_indptr[i], qo_indptr[i + 1])`; rows
            past `qo_indptr[B]` are padding.
        k: keys of the same tokens, `[T or more, Hkv, D]` of q's dtype. Rows of padding are not read.
        v: values, as k.
        out: `[T or more, Hq, D]` float32, float16, bfloat16, or fp8 with `output_scale`. Padding rows are not written.
        k_buffer: keys by slots, `[num_slots, Hkv, D]` of q's dtype or fp8.
        v_buffer: values by slots, of the dtype of `k_buffer`.
        qo_indptr: `[B + 1]` int32 or int64, prefix sums of the query lengths, beginning with 0. Length 0 is legal.
        kv_indptr: `[B + 1]` int32 or int64, prefix sums of the context lengths, beginning with 0. Length 0 is legal.
        kv_indices: `[kv_indptr[B] or more]` int32 or int64, the slots of all contexts, in any order. Sequences may
            share slots. The slot of a key that no token sees is not read.
        max_len_extend: the most new tokens of one sequence; of a longer one, later tokens may stay unwritten.
        sm_scale: factor on the dot products; None is D ** -0.5.
        is_causal: whether a token sees no key behind p.
        window_size: (left, right): a token sees keys from p - left to p + right, -1 is no limit. With `is_causal` right
            must be -1 or 0, which mean the same.
        custom_mask: bool or uint8, for each sequence `[query_len, C + query_len]`, one sequence after the other; a
            token sees a key only where its element is not 0. Elements that other masks hide are not read.
        mask_indptr: `[B + 1]` int32 or int64, prefix sums of the sizes of the masks. Needed with `custom_mask`.
        top_left: the position of new token i is i, not C + i. Only with `is_causal`.
        chunk_size: a token sees only keys of its own chunk, from p // chunk_size * chunk_size on; 0 is no chunks. Only
            with `is_causal`.
        logit_cap: score = logit_cap * tanh(score / logit_cap), 0 is none.
        sinks: `[Hq]` float; exp(sink) joins each row's denominator.
        k_scale: one float32 element, may be expanded: the value of a stored fp8 1. None is 1. Read only for fp8
            buffers; keys are scaled in float32 and rounded to q's dtype.
        v_scale: the same for values.
        output_scale: one float32 element; fp8 output is divided by it, then clamped to the finite range.
        tile_size: keys in a tile, a power of two from 16 to 128. None lets a heuristic choose.

    Raises:
        ContractError: an argument is outside of the above. Lengths, slots and scales on the device are not read.

    """
    required = {"q": q, "k": k, "v": v, "out": out, "k_buffer": k_buffer, "v_buffer": v_buffer}
    indices = {"qo_indptr": qo_indptr, "kv_indptr": kv_indptr, "kv_indices": kv_indices}
    optional = {"sinks": sinks, "k_scale": k_scale, "v_scale": v_scale, "output_scale": output_scale}
    check_tensors(required | indices, optional | {"custom_mask": custom_mask, "mask_indptr": mask_indptr})
    check_queries(("q", "out"), q, out, FLOAT_DTYPES)
    _check_keys(q, {"k": k, "v": v}, {"k_buffer": k_buffer, "v_buffer": v_buffer})
    _check_indices(qo_indptr, kv_indptr, kv_indices)
    _check_masks(qo_indptr, custom_mask, mask_indptr)
    _check_positions(window_size, chunk_size, is_causal=is_causal, top_left=top_left)
    require_range("max_len_extend", max_len_extend, 0)
    require_finite("logit_cap", logit_cap)
    if logit_cap < 0:
        raise ContractError(f"{logit_cap=} must be at least 0")
    if sm_scale is not None:
        require_finite("sm_scale", sm_scale)
    check_head_vector("sinks", sinks, q.shape[1])
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is not None:
            require_one_element(name, scale)
    check_output_scale(("output_scale", "out"), output_scale, out)
    check_tile_size(tile_size, q.dtype)

    num_seqs, head_size, num_kv_heads = qo_indptr.shape[0] - 1, q.shape[2], k.shape[1]
    if not (q.shape[0] and num_seqs and max_len_extend):
        return
    group = q.shape[1] // num_kv_heads
    block_m = block_m_for(group, max_len_extend)
    block_q = block_m // group
    padded, tile = head_size_padded_for(head_size, q.dtype), tile_size or tile_size_for(head_size, q.dtype, False)
    left, right = window_size
    kernel_extend_attention[(num_seqs, num_kv_heads, ceil_div(max_len_extend, block_q))](
        **output_arguments(out, output_scale),
        queries=_tokens(q),
        new_keys=_tokens(k),
        new_values=_tokens(v),
        keys=_tokens(k_buffer),
        values=_tokens(v_buffer),
        slots=Slots(query_start_loc_ptr=qo_indptr, kv_indptr_ptr=kv_indptr, kv_indices_ptr=kv_indices),
        custom_mask=CustomMask(
            ptr=None if custom_mask is None else custom_mask.view(torch.uint8), indptr_ptr=mask_indptr
        ),
        scores=Scores(softcap=float(logit_cap), alibi_slopes_ptr=None, qq_bias_ptr=None, sinks_ptr=sinks),
        scales=Scales(
            softmax_scale=head_size**-0.5 if sm_scale is None else float(sm_scale),
            q_scale_ptr=None,
            k_scale_ptr=k_scale,
            v_scale_ptr=v_scale,
        ),
        window_left=kernel_window(left),
        window_right=kernel_window(right),
        chunk_size=chunk_size,
        tiling=Tiling(BLOCK_Q=block_q, TILE_SIZE=tile, HEAD_SIZE=head_size, HEAD_SIZE_PADDED=padded),
        variant=Variant(
            BLOCK_M=block_m,
            NUM_QUERIES_PER_KV=group,
            BLOCK_SIZE=1,
            USE_WINDOW=left >= 0,
            USE_SOFTCAP=logit_cap > 0,
            USE_ALIBI=False,
            USE_QQ_BIAS=False,
            USE_SINKS=sinks is not None,
            USE_FP8_Q=False,
            USE_FP8_KV=k_buffer.dtype in FP8_DTYPES,
        ),
        masks=MaskVariant(
            IS_CAUSAL=is_causal,
            TOP_LEFT=top_left,
            USE_LEFT=left >= 0,
            USE_RIGHT=right >= 0 and not is_causal,
            USE_CHUNKS=chunk_size > 0,
            USE_CUSTOM=custom_mask is not None,
        ),
        **compiler_options(block_m, padded, tile, q.dtype),
    )


def _tokens(tensor: torch.Tensor) -> Tokens:
    return Tokens(ptr=tensor, stride_token=tensor.stride(0), stride_head=tensor.stride(1))


def _check_keys(q: torch.Tensor, new: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> None:
    """Check new keys and values, and buffers of slots, against the queries."""
    num_kv_heads, head_size = new["k"].shape[1] if new["k"].dim() == 3 else None, q.shape[2]
    for name, tensor in (new | buffers).items():
        require_dtype(name, tensor, (q.dtype,) if name in new else (q.dtype, *FP8_DTYPES))
        require_shape(name, tensor, (None, num_kv_heads, head_size))
        require_unit_stride(name, tensor)
        if name in new:
            require_range(f"{name}.shape[0]", tensor.shape[0], q.shape[0])
    require_dtype("v_buffer", buffers["v_buffer"], (buffers["k_buffer"].dtype,))
    check_heads(num_query_heads=q.shape[1], num_kv_heads=new["k"].shape[1])


def _check_indices(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor) -> None:
    """Check prefix sums of shape `[num_seqs + 1]` and a vector of slots."""
    for name, tensor in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr), ("kv_indices", kv_indices)):
        require_dtype(name, tensor, INDEX_DTYPES)
        require_shape(name, tensor, (None,))
        require_unit_stride(name, tensor)
    require_range("qo_indptr.shape[0]", qo_indptr.shape[0], 1)
    require_shape("kv_indptr", kv_indptr, tuple(qo_indptr.shape))


def _check_masks(qo_indptr: torch.Tensor, custom_mask: torch.Tensor | None, mask_indptr: torch.Tensor | None) -> None:
    """Check that a custom mask is a vector of bits and comes with its prefix sums, and these not without it."""
    if (custom_mask is None) != (mask_indptr is None):
        raise ContractError("custom_mask and mask_indptr must both be given or both be None")
    if custom_mask is not None and mask_indptr is not None:
        require_dtype("custom_mask", custom_mask, MASK_DTYPES)
        require_shape("custom_mask", custom_mask, (None,))
        require_unit_stride("custom_mask", custom_mask)
        require_dtype("mask_indptr", mask_indptr, INDEX_DTYPES)
        require_shape("mask_indptr", mask_indptr, tuple(qo_indptr.shape))
        require_unit_stride("mask_indptr", mask_indptr)


def _check_positions(window_size: tuple[int, int], chunk_size: int, *, is_causal: bool, top_left: bool) -> None:
    """Check the masks that follow from positions."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ContractError(f"{window_size=} must be a pair (left, right)")
    require_range("window_size[0]", window_size[0], -1)
    require_range("window_size[1]", window_size[1], -1, 0 if is_causal else None)
    require_range("chunk_size", chunk_size, 0)
    if not is_causal and (top_left or chunk_size):
        raise ContractError(f"{is_causal=} must be True with {top_left=} and {chunk_size=}")
