"""The launcher and the kernel of merging attention states: outputs and LSEs of several parts of the keys."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import torch
import triton
import triton.language as tl

from .common.contract import (
    FLOAT_DTYPES,
    MAX_HEAD_SIZE,
    ContractError,
    check_tensors,
    require_dtype,
    require_range,
    require_shape,
    require_unit_stride,
)


@triton.jit(do_not_specialize=["num_states"])
def kernel_merge_states(
    partial_outputs_ptr,  # [num_states, num_tokens, num_heads, head_size]
    partial_outputs_stride_state,
    partial_outputs_stride_token,
    partial_outputs_stride_head,
    partial_lses_ptr,  # float32 [num_states, num_tokens, num_heads]
    partial_lses_stride_state,
    partial_lses_stride_token,
    partial_lses_stride_head,
    out_ptr,  # [num_tokens or more, num_heads, head_size]
    out_stride_token,
    out_stride_head,
    lse_ptr,  # float32 [num_tokens or more, num_heads]
    lse_stride_token,
    lse_stride_head,
    num_states,
    HEAD_SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,  # a power of two
):
    """Merge the states of one row, which is program (token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, HEAD_BLOCK)  # [HEAD_BLOCK]
    lses_ptr = partial_lses_ptr + token * partial_lses_stride_token + head * partial_lses_stride_head
    states_ptr = partial_outputs_ptr + token * partial_outputs_stride_token + head * partial_outputs_stride_head

    largest = float("-inf")
    for state in range(num_states):
        largest = tl.maximum(largest, tl.load(lses_ptr + tl.cast(state, tl.int64) * partial_lses_stride_state))

    weights = 0.0
    total = tl.zeros([HEAD_BLOCK], tl.float32)  # [HEAD_BLOCK]
    for state in range(num_states):
        state_64 = tl.cast(state, tl.int64)
        lse = tl.load(lses_ptr + state_64 * partial_lses_stride_state)
        has_keys = lse > float("-inf")
        # Without any key the difference would be NaN: -inf - -inf.
        weight = tl.where(has_keys, tl.exp(lse - tl.where(has_keys, largest, 0.0)), 0.0)
        # The output of a state without a key may hold anything, and 0 * NaN is NaN.
        num_columns = tl.where(has_keys, HEAD_SIZE, 0)
        values = tl.load(
            states_ptr + state_64 * partial_outputs_stride_state + columns,
            mask=columns < num_columns,
            other=0.0,
        ).to(tl.float32)  # [HEAD_BLOCK]
        weights += weight
        total += weight * values

    has_any = weights > 0.0
    merged = tl.where(has_any, total / tl.where(has_any, weights, 1.0), 0.0)  # [HEAD_BLOCK]
    tl.store(
        out_ptr + token * out_stride_token + head * out_stride_head + columns,
        merged.to(out_ptr.dtype.element_ty),
        mask=columns < HEAD_SIZE,
    )
    merged_lse = tl.where(has_any, largest + tl.log(tl.where(has_any, weights, 1.0)), float("-inf"))
    tl.store(lse_ptr + token * lse_stride_token + head * lse_stride_head, merged_lse)


def merge_states(
    partial_outputs: torch.Tensor, partial_lses: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """Write the merge of all states of each row into `out`, and its LSE into `lse`.

    The output is the average of the states' outputs, with exp(LSE) as weights. A row whose states saw no key has the
    output 0 and the LSE -inf. The last dimension of outputs has stride 1, all other strides are free.

    Args:
        partial_outputs: `[num_states, num_tokens, num_heads, head_size]` float32, float16 or bfloat16; the head size is
            from 1 to 256. What the output of a state with an LSE of -inf holds is not read.
        partial_lses: `[num_states, num_tokens, num_heads]` float32, natural logarithms, -inf for a state without keys.
        out: `[num_tokens or more, num_heads, head_size]`, dtype as `partial_outputs`. Rows of no token are not written.
        lse: `[num_tokens or more, num_heads]` float32, likewise.

    Raises:
        ContractError: an argument is outside of the above. No number on the device is read.

    """
    given = {"partial_outputs": partial_outputs, "partial_lses": partial_lses, "out": out, "lse": lse}
    check_tensors(given, {})
    require_shape("partial_outputs", partial_outputs, (None, None, None, None))
    num_states, num_tokens, num_heads, head_size = partial_outputs.shape
    require_range("num_states", num_states, 1)
    require_range("head_size", head_size, 1, MAX_HEAD_SIZE)
    require_dtype("partial_outputs", partial_outputs, FLOAT_DTYPES)
    require_dtype("partial_lses", partial_lses, (torch.float32,))
    require_dtype("out", out, (partial_outputs.dtype,))
    require_dtype("lse", lse, (torch.float32,))
    require_shape("partial_lses", partial_lses, (num_states, num_tokens, num_heads))
    require_shape("out", out, (None, num_heads, head_size))
    require_shape("lse", lse, (None, num_heads))
    for name, tensor in (("out", out), ("lse", lse)):
        if tensor.shape[0] < num_tokens:
            raise ContractError(f"{name} has {tensor.shape[0]} rows, must have at least {num_tokens=}")
    require_unit_stride("partial_outputs", partial_outputs)
    require_unit_stride("out", out)
    if not num_tokens or not num_heads:
        return
    kernel_merge_states[num_tokens, num_heads](
        partial_outputs,
        *partial_outputs.stride()[:3],
        partial_lses,
        *partial_lses.stride(),
        out,
        *out.stride()[:2],
        lse,
        *lse.stride(),
        num_states,
        HEAD_SIZE=head_size,
        HEAD_BLOCK=triton.next_power_of_2(head_size),
    )
