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


@triton.jit
def quantised(
    values,  # [HEAD_BLOCK], 0 behind the head
    LIMIT: tl.constexpr,  # what the largest magnitude becomes
    USE_INTEGERS: tl.constexpr,
):
    """Return float32 numbers from -LIMIT to LIMIT, for integers rounded to the nearest, and the scale of the row."""
    numbers = values.to(tl.float32)
    scale = tl.max(tl.abs(numbers), 0) / LIMIT
    # A row of zeros has the scale 0, and 0 / 0 is NaN.
    quotient = numbers / tl.where(scale > 0.0, scale, 1.0)
    if USE_INTEGERS:
        quotient = tl.floor(quotient + 0.5)
    return tl.clamp(quotient, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL), scale


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
    k_scale_cache_ptr,  # float32 [num_pages, page_size, num_kv_heads], None unless USE_OWN_SCALES
    k_scale_cache_stride_page,
    k_scale_cache_stride_slot,
    k_scale_cache_stride_head,
    v_scale_cache_ptr,  # likewise
    v_scale_cache_stride_page,
    v_scale_cache_stride_slot,
    v_scale_cache_stride_head,
    page_size,
    HEAD_SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,  # a power of two
    LIMIT: tl.constexpr,  # the largest number of an fp8 or int8 cache, else None
    USE_OWN_SCALES: tl.constexpr,  # whether each token and head has a scale, which is written
    USE_INTEGERS: tl.constexpr,
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
    if USE_OWN_SCALES:
        key, key_scale = quantised(key, LIMIT, USE_INTEGERS)
        key_scale_to = k_scale_cache_ptr + page * k_scale_cache_stride_page + place * k_scale_cache_stride_slot
        tl.store(key_scale_to + head * k_scale_cache_stride_head, key_scale, mask=slot >= 0)
    else:
        key = as_stored(key, k_scale_ptr, LIMIT)  # [HEAD_BLOCK]
    tl.store(key_to + columns, key.to(key_cache_ptr.dtype.element_ty), mask=mask)

    value = tl.load(value_ptr + token * value_stride_token + head * value_stride_head + columns, mask=mask, other=0.0)
    value_to = value_cache_ptr + page * value_cache_stride_page + place * value_cache_stride_slot
    if USE_OWN_SCALES:
        value, value_scale = quantised(value, LIMIT, USE_INTEGERS)
        value_scale_to = v_scale_cache_ptr + page * v_scale_cache_stride_page + place * v_scale_cache_stride_slot
        tl.store(value_scale_to + head * v_scale_cache_stride_head, value_scale, mask=slot >= 0)
    else:
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
    k_scale_cache: torch.Tensor | None = None,
    v_scale_cache: torch.Tensor | None = None,
) -> None:
    """Write the key and the value of token i into slot `slot_mapping[i]` of the caches.

    Slot s is place `s % page_size` of page `s // page_size`. All other elements of the caches keep their bits. The last
    dimension has stride 1, all other strides are free. A number is cast to the type of the caches; for fp8 caches it is
    divided by its scale and clamped to the finite range first. With caches of scales, the scale of a token and head is
    its largest magnitude divided by the largest finite number of the caches (127 for int8).

    Args:
        key: `[num_tokens or more, num_kv_heads, head_size]` float32, float16 or bfloat16; the head size is from 1 to
            256. Rows behind those of `slot_mapping` are not read.
        value: likewise, shape and dtype as `key`.
        key_cache: `[num_pages, page_size, num_kv_heads, head_size]`, dtype as `key`, float16, bfloat16 or fp8; with
            caches of scales fp8 or int8.
        value_cache: likewise, shape and dtype as `key_cache`.
        slot_mapping: `[num_tokens]` int64, dense. A negative slot skips the token; no slot may stand there twice.
        k_scale: one float32 element, needed by fp8 caches without caches of scales and not read by others: what a
            stored 1 stands for.
        v_scale: likewise for values.
        k_scale_cache: `[num_pages, page_size, num_kv_heads]` float32, any strides, written where keys are; None for one
            scale or none.
        v_scale_cache: likewise for values; given if `k_scale_cache` is.

    Raises:
        ContractError: an argument is outside of the above. No number on the device is read.

    """
    caches = {"key_cache": key_cache, "value_cache": value_cache}
    given = {"key": key, "value": value, **caches, "slot_mapping": slot_mapping}
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    own_scales = {"k_scale_cache": k_scale_cache, "v_scale_cache": v_scale_cache}
    check_tensors(given, scales | own_scales)
    require_shape("key", key, (None, None, None))
    num_rows, num_kv_heads, head_size = key.shape
    require_range("head_size", head_size, 1, MAX_HEAD_SIZE)
    require_dtype("key", key, FLOAT_DTYPES)
    require_dtype("value", value, (key.dtype,))
    require_shape("value", value, (num_rows, num_kv_heads, head_size))
    require_shape("key_cache", key_cache, (None, None, num_kv_heads, head_size))
    require_shape("value_cache", value_cache, key_cache.shape)
    use_own_scales = k_scale_cache is not None
    wide = dict.fromkeys((key.dtype, *HALF_DTYPES))
    require_dtype("key_cache", key_cache, (torch.int8, *FP8_DTYPES) if use_own_scales else (*wide, *FP8_DTYPES))
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
        elif is_fp8 and not use_own_scales:
            raise ContractError(f"{name} must be given for key_cache of dtype {dtype_name(key_cache.dtype)}")
    for name, cache in own_scales.items():
        if (cache is not None) != use_own_scales:
            raise ContractError(f"{name} must be {'given' if use_own_scales else 'None'} like k_scale_cache")
        if cache is not None:
            require_dtype(name, cache, (torch.float32,))
            require_shape(name, cache, key_cache.shape[:3])
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
        k_scale_cache,
        *((0, 0, 0) if k_scale_cache is None else k_scale_cache.stride()),
        v_scale_cache,
        *((0, 0, 0) if v_scale_cache is None else v_scale_cache.stride()),
        key_cache.shape[1],
        HEAD_SIZE=head_size,
        HEAD_BLOCK=triton.next_power_of_2(head_size),
        LIMIT=torch.finfo(key_cache.dtype).max if is_fp8 else 127.0 if use_own_scales else None,
        USE_OWN_SCALES=use_own_scales,
        USE_INTEGERS=key_cache.dtype == torch.int8,
    )
