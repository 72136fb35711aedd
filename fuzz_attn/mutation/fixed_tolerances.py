"""Fixed tolerances, as kernels' test suites use them, to compare with the oracle's derived bound.

Each gets its best chance: it compares with the exact output, rounded to the output's type, on this harness's cases, and
it sees a launch that fails or hangs. It has no sanitizers and no metamorphic relations, and checks only the rows.

- vLLM's tests: atol 1.5e-2 and rtol 1e-2 for half types, 1.5e-1 for both where anything is fp8
  (test_triton_unified_attention.py); 1e-3 and 1e-5 in float32 (test_attention.py).
- FlashAttention's tests (hopper/test_flash_attn.py): the largest error may be twice that of a plain implementation in
  the inputs' own type (three times with a soft cap), plus twice the roundoff at 0.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzz_attn.inputs.tensor_types import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.mutation.audit_results import FLASH_ATTENTION, VLLM
from fuzz_attn.oracle.logits import score_scale
from fuzz_attn.oracle.reference import Reference, output_factor
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks


@dataclass(frozen=True)
class AllowedErrors:
    """Attention's output that a rule expects, float64 ``[num_tokens, num_query_heads, head_size]``, and its limits."""

    expected: torch.Tensor
    limit: torch.Tensor

    def accepts(self, tensors: AttentionTensors) -> bool:
        """Return whether every live element is within its limit; NaN never is."""
        output = tensors.outputs["out"]
        actual = output.elements.double()
        near = ((actual - self.expected).abs() <= self.limit) | (actual == self.expected)
        return bool((near if output.live is None else near | ~output.live).all())


def allowed_errors(tensors: AttentionTensors, reference: Reference) -> dict[str, AllowedErrors]:
    """Return the errors that each rule allows in an output of these tensors."""
    dtype = tensors.output.dtype
    expected = stored(reference["out"].value, dtype)
    absolute, relative = tolerances(tensors)
    limits = {
        VLLM: absolute + relative * expected.abs(),
        FLASH_ATTENTION: torch.tensor(_flash_attention_limit(tensors, expected), dtype=torch.float64),
    }
    return {name: AllowedErrors(expected, limit) for name, limit in limits.items()}


def tolerances(tensors: AttentionTensors) -> tuple[float, float]:
    """Return vLLM's (atol, rtol) for tensors of these types."""
    types = (tensors.query.dtype, tensors.value_cache.dtype, tensors.output.dtype)
    if any(is_fp8_dtype(dtype) for dtype in types):
        return 1.5e-1, 1.5e-1
    return (1e-3, 1e-5) if tensors.query.dtype == torch.float32 else (1.5e-2, 1e-2)


def stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers rounded to a type, as float64; fp8 is clamped to its finite range."""
    if is_fp8_dtype(dtype):
        limit = torch.finfo(dtype).max
        numbers = numbers.clamp(-limit, limit).float()
    return numbers.to(dtype).double()


def _flash_attention_limit(tensors: AttentionTensors, expected: torch.Tensor) -> float:
    """Return the largest error that FlashAttention's tests allow for these tensors."""
    if not expected.numel():
        return 0.0
    plain = low_precision_output(tensors, expected)
    noise = (stored(stored(expected + 0.3, tensors.output.dtype) - 0.3, tensors.output.dtype) - expected).abs().max()
    return float((3 if tensors.softcap else 2) * (plain - expected).abs().max() + 2 * noise)


def low_precision_output(tensors: AttentionTensors, like: torch.Tensor) -> torch.Tensor:
    """Return the output of an implementation that keeps everything in the type of q, bfloat16 where that is fp8.

    It scales the keys, and keeps scores, weights and output in that type; sums are torch's. Float64, shaped as
    ``like``.
    """
    working = torch.bfloat16 if is_fp8_dtype(tensors.query.dtype) else tensors.query.dtype
    output = torch.zeros_like(like).view(like.shape[0], tensors.num_kv_heads, -1, like.shape[-1])
    for block in row_blocks(tensors):
        output[block.tokens] = _attended(block, tensors, working).double().transpose(1, 2)
    return stored(output.view_as(like) * output_factor(tensors), tensors.output.dtype)


def _attended(block: RowBlock, tensors: AttentionTensors, working: torch.dtype) -> torch.Tensor:
    """Return the weighted sum of V ``[B, num_kv_heads, Q, group, head_size]``, everything in one type."""
    keys = (block.keys * score_scale(tensors)).to(working)
    shape = (*block.queries.shape[:4], keys.shape[2])
    scores = (block.queries.to(working).flatten(2, 3) @ keys.transpose(-1, -2)).view(shape)
    if tensors.softcap:
        scores = torch.tanh(scores / tensors.softcap) * tensors.softcap
    if tensors.alibi_slopes is not None:
        slopes = tensors.alibi_slopes.to(working).view(keys.shape[1], 1, -1, 1)
        scores = scores + slopes * (block.key_position - block.context_len[:, None]).to(working)[:, None, None, None]
    if block.qq_bias is not None:
        scores = scores + block.qq_bias.to(working)[:, None, :, None]
    scores = scores.masked_fill(~block.visible[:, None, :, None], -torch.inf)
    if tensors.sinks is not None:
        sinks = tensors.sinks.to(working).view(keys.shape[1], 1, -1, 1).expand(*shape[:4], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : shape[-1]]
    return (weights.flatten(2, 3) @ block.values.to(working)).view(*block.queries.shape[:-1], -1)
