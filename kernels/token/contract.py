"""The contract of decode over slots: what is checked before a kernel is launched."""

import torch

from ..common.contract import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    MAX_HEAD_SIZE,
    ContractError,
    check_head_vector,
    check_heads,
    check_output_scale,
    check_tensors,
    check_tile_size,
    require_dtype,
    require_finite,
    require_one_element,
    require_range,
    require_shape,
    require_unit_stride,
)

INDEX_DTYPES = (torch.int32, torch.int64)
MAX_SPLITS = 64


def check_tensors_of_call(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    lists: dict[str, torch.Tensor],
    optional: dict[str, torch.Tensor | None],
) -> None:
    """Raise ContractError for the first of the tensors that is outside of the contract.

    `lists` are kv_indptr and kv_indices, `optional` all tensors that may be None.
    """
    check_tensors({"q": q, "k_buffer": k_buffer, "v_buffer": v_buffer, "out": out} | lists, optional)
    require_dtype("q", q, FLOAT_DTYPES)
    require_shape("q", q, (None, None, None))
    num_tokens, num_query_heads, head_size = q.shape
    require_range("head_size", head_size, 1, MAX_HEAD_SIZE)
    require_dtype("k_buffer", k_buffer, (q.dtype, *FP8_DTYPES))
    require_shape("k_buffer", k_buffer, (None, None, head_size))
    require_dtype("v_buffer", v_buffer, (k_buffer.dtype,))
    require_shape("v_buffer", v_buffer, (k_buffer.shape[0], k_buffer.shape[1], None))
    require_range("head_size_v", v_buffer.shape[2], 1, MAX_HEAD_SIZE)
    check_heads(num_query_heads=num_query_heads, num_kv_heads=k_buffer.shape[1])
    require_dtype("out", out, FLOAT_DTYPES + FP8_DTYPES)
    require_shape("out", out, (None, num_query_heads, v_buffer.shape[2]))
    require_range("out.shape[0]", out.shape[0], num_tokens)
    for name, tensor in (("q", q), ("k_buffer", k_buffer), ("v_buffer", v_buffer), ("out", out)):
        require_unit_stride(name, tensor)
    for name, tensor in lists.items():
        _check_index_vector(name, tensor)
    require_range("kv_indptr.shape[0]", lists["kv_indptr"].shape[0], 1)
    require_range("q.shape[0]", num_tokens, lists["kv_indptr"].shape[0] - 1)
    check_head_vector("sinks", optional["sinks"], num_query_heads)
    for name in ("k_scale", "v_scale"):
        scale = optional[name]
        if scale is not None:
            require_one_element(name, scale)
    check_output_scale(("output_scale", "out"), optional["output_scale"], out)
    lse = optional["lse"]
    if lse is not None:
        require_dtype("lse", lse, (torch.float32,))
        require_shape("lse", lse, (None, num_query_heads))
        require_range("lse.shape[0]", lse.shape[0], num_tokens)


def check_splits(
    out: torch.Tensor,
    num_seqs: int,
    max_kv_splits: int | None,
    num_kv_splits: torch.Tensor | None,
    att_out: torch.Tensor | None,
    att_lse: torch.Tensor | None,
) -> None:
    """Check the number of splits, and the scratch of the caller against it."""
    if max_kv_splits is not None:
        require_range("max_kv_splits", max_kv_splits, 1, MAX_SPLITS)
    elif any(tensor is not None for tensor in (num_kv_splits, att_out, att_lse)):
        raise ContractError("max_kv_splits must be given with num_kv_splits, att_out or att_lse")
    if num_kv_splits is not None:
        _check_index_vector("num_kv_splits", num_kv_splits)
        require_range("num_kv_splits.shape[0]", num_kv_splits.shape[0], num_seqs)
    if (att_out is None) != (att_lse is None):
        raise ContractError("att_out and att_lse must both be given or both be None")
    scratch = {"att_out": (att_out, out.shape[2:]), "att_lse": (att_lse, ())}
    for name, (tensor, last) in scratch.items():
        if tensor is not None:
            require_dtype(name, tensor, (torch.float32,))
            require_shape(name, tensor, (None, out.shape[1], max_kv_splits, *last))
            require_range(f"{name}.shape[0]", tensor.shape[0], num_seqs)
            if not tensor.is_contiguous():
                raise ContractError(f"{name} has strides {tensor.stride()}, must be contiguous")


def check_numbers(
    q: torch.Tensor, sm_scale: float | None, sliding_window: int | None, logit_cap: float, tile_size: int | None
) -> None:
    """Check the host numbers of a call."""
    if sm_scale is not None:
        require_finite("sm_scale", sm_scale)
    if sliding_window is not None:
        require_range("sliding_window", sliding_window, -1)
    require_finite("logit_cap", logit_cap)
    if logit_cap < 0:
        raise ContractError(f"{logit_cap=} must be at least 0")
    check_tile_size(tile_size, q.dtype)


def _check_index_vector(name: str, tensor: torch.Tensor) -> None:
    require_dtype(name, tensor, INDEX_DTYPES)
    require_shape(name, tensor, (None,))
    require_unit_stride(name, tensor)
