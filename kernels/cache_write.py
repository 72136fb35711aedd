"""The launcher and the kernel of writing new keys and values into the slots of a paged cache."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import torch
import triton
import triton.language as tl

from .common.contract import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    MAX_HEAD_SIZE,
    ContractError,
    check_tensors,
    dtype_name,
    require_dtype,
    require_one_element,
    require_range,
    require_shape,
    require_unit_stride,
)

HALF_DTYPES = (torch.float16, torch.bfloat16)


@triton.jit
def as_stored(
    values,  # [HEAD_BLOCK]
    scale_ptr,  # float32 [1], not read unless fp8
    LIMIT: tl.constexpr,  # the largest finite number of an fp8 cache, else None
):
    """Return the float32 numbers that are rounded to the cache's type.

    A quotient beyond the limit is clamped here because the conversion need not saturate; NaN stays NaN.
    """
    numbers = values.to(tl.float32)
    if LIMIT is not None:
        quotient = numbers / tl.load(scale_ptr)
        numbers = tl.clamp(quotient, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return numbers


@triton.jit(do_not_specialize=["page_size"])
def kernel_cache_write(
    key_ptr,  # [num_tokens or more, num_kv_heads, head_size]
    key_stride_token,
    key_stride_head,
    value_ptr,  # [num_tokens or more, num_kv_heads, head_size]
    value_stride_token,
    value_stride_head,
    key_cache_ptr,  # [num_pages, page_size, num_kv_heads, head_size]
    key_cache_stride_page,
    key_cache_stride_slot,
    key_cache_stride_head,
    value_cache_ptr,  # [num_pages, page_size, num_kv_heads, head_size]
    value_cache_stride_page,
    value_cache_stride_slot,
    value_cache_stride_head,
    slot_mapping_ptr,  # int64 [num_tokens]
    k_scale_ptr,  # float32 [1]
    v_scale_ptr,  # float32 [1]
    page_size,
    HEAD_SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,  # a power of two
    LIMIT: tl.constexpr,  # as in as_stored
):
    """Write key and value of one token and head, which is program (token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, HEAD_BLOCK)  # [HEAD_BLOCK]
    slot = tl.load(slot_mapping_ptr + token)
    # A negative slot skips the token: its key and value need not be readable.
    mask = (columns < HEAD_SIZE) & (slot >= 0)  # [HEAD_BLOCK]
    page = slot // page_size
    place = slot % page_size

    key = tl.load(key_ptr + token * key_stride_token + head * key_stride_head + columns, mask=mask, other=0.0)
    key_to = key_cache_ptr + page * key_cache_stride_page + place * key_cache_stride_slot + head * key_cache_stride_head
    key = as_stored(key, k_scale_ptr, LIMIT)  # [HEAD_BLOCK]
    tl.store(key_to + columns, key.to(key_cache_ptr.dtype.element_ty), mask=mask)

    value = tl.load(value_ptr + token * value_stride_token + head * value_stride_head + columns, mask=mask, other=0.0)
    value_to = value_cache_ptr + page * value_cache_stride_page + place * value_cache_stride_slot
    value = as_stored(value, v_scale_ptr, LIMIT)  # [HEAD_BLOCK]
    tl.store(value_to + head * value_cache_stride_head + columns, value.to(value_cache_ptr.dtype.element_ty), mask=mask)


def cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Write the key and the value of token i into slot `slot_mapping[i]` of the caches.

    Slot s is place `s % page_size` of page `s // page_size`. All other elements of the caches keep their bits. The last
    dimension has stride 1, all other strides are free. A number is cast to the type of the caches; for fp8 caches it is
    divided by its scale and clamped to the finite range first.

    Args:
        key: `[num_tokens or more, num_kv_heads, head_size]` float32, float16 or bfloat16; the head size is from 1 to
            256. Rows behind those of `slot_mapping` are not read.
        value: likewise, shape and dtype as `key`.
        key_cache: `[num_pages, page_size, num_kv_heads, head_size]`, dtype as `key`, float16, bfloat16 or fp8.
        value_cache: likewise, shape and dtype as `key_cache`.
        slot_mapping: `[num_tokens]` int64, dense. A negative slot skips the token; no slot may stand there twice.
        k_scale: one float32 element, needed by fp8 caches and not read by others: what a stored 1 stands for.
        v_scale: likewise for values.

    Raises:
        ContractError: an argument is outside of the above. No number on the device is read.

    """
    caches = {"key_cache": key_cache, "value_cache": value_cache}
    given = {"key": key, "value": value, **caches, "slot_mapping": slot_mapping}
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    check_tensors(given, scales)
    require_shape("key", key, (None, None, None))
    num_rows, num_kv_heads, head_size = key.shape
    require_range("head_size", head_size, 1, MAX_HEAD_SIZE)
    require_dtype("key", key, FLOAT_DTYPES)
    require_dtype("value", value, (key.dtype,))
    require_shape("value", value, (num_rows, num_kv_heads, head_size))
    require_shape("key_cache", key_cache, (None, None, num_kv_heads, head_size))
    require_shape("value_cache", value_cache, key_cache.shape)
    require_dtype("key_cache", key_cache, (*dict.fromkeys((key.dtype, *HALF_DTYPES)), *FP8_DTYPES))
    require_dtype("value_cache", value_cache, (key_cache.dtype,))
    require_dtype("slot_mapping", slot_mapping, (torch.int64,))
    require_shape("slot_mapping", slot_mapping, (None,))
    num_tokens = slot_mapping.shape[0]
    if num_rows < num_tokens:
        raise ContractError(f"key has {num_rows} rows, must have at least {num_tokens=}")
    for name, tensor in given.items():
        require_unit_stride(name, tensor)
    is_fp8 = key_cache.dtype in FP8_DTYPES
    for name, scale in scales.items():
        if scale is not None:
            require_one_element(name, scale)
        elif is_fp8:
            raise ContractError(f"{name} must be given for key_cache of dtype {dtype_name(key_cache.dtype)}")
    if not num_tokens or not num_kv_heads:
        return
    require_range("page_size", key_cache.shape[1], 1)
    kernel_cache_write[num_tokens, num_kv_heads](
        key,
        *key.stride()[:2],
        value,
        *value.stride()[:2],
        key_cache,
        *key_cache.stride()[:3],
        value_cache,
        *value_cache.stride()[:3],
        slot_mapping,
        k_scale,
        v_scale,
        key_cache.shape[1],
        HEAD_SIZE=head_size,
        HEAD_BLOCK=triton.next_power_of_2(head_size),
        LIMIT=torch.finfo(key_cache.dtype).max if is_fp8 else None,
    )
