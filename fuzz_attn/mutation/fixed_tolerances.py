"""Fixed tolerances, as the test suites of kernels use them: what the oracle's bound is measured against.

Each is given its best chance: it compares with the exact output, rounded to the output's type, on this harness's cases,
and it sees a launch that fails or hangs. It has no sanitizers and no relations, and does not look outside of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.logits import score_scale
from fuzz_attn.oracle.reference import Reference, output_factor
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks

FIXED: Final = "vllm"
"""vLLM's tests. atol 1.5e-2 and rtol 1e-2 for half types (test_triton_unified_attention.py), 1.5e-1 for both where
anything is fp8 (the same), 1e-3 and 1e-5 in float32 (test_attention.py)."""

TWICE: Final = "flash_attention"
"""FlashAttention's tests (hopper/test_flash_attn.py): the largest error may be twice (three times under a soft cap)
that of a plain implementation in the inputs' own type, and twice the roundoff at 0.3."""

RULES: Final = (FIXED, TWICE)


@dataclass(frozen=True)
class Yardstick:
    """What a rule expects, float64 ``[num_tokens, num_query_heads, head_size]``, and how far off an output may be."""

    expected: torch.Tensor
    limit: torch.Tensor
    answered: torch.Tensor | None = None
    """Bool ``[num_tokens]``, whose rows count; None for all."""

    def accepts(self, output: torch.Tensor) -> bool:
        """Return whether every element of the rows is near enough; NaN never is."""
        actual = output[: self.expected.shape[0]].double()
        near = ((actual - self.expected).abs() <= self.limit) | (actual == self.expected)
        return bool((near if self.answered is None else near[self.answered]).all())


def yardsticks(tensors: AttentionTensors, reference: Reference) -> dict[str, Yardstick]:
    """Return what each rule holds an output of these tensors to."""
    dtype = tensors.output.dtype
    expected = stored(reference.expected, dtype)
    absolute, relative = tolerances(tensors)
    limits = {
        FIXED: absolute + relative * expected.abs(),
        TWICE: torch.tensor(_twice(tensors, expected), dtype=torch.float64),
    }
    return {name: Yardstick(expected, limit, tensors.answered_tokens) for name, limit in limits.items()}


def tolerances(tensors: AttentionTensors) -> tuple[float, float]:
    """Return vLLM's (atol, rtol) for tensors of these types."""
    types = (tensors.query.dtype, tensors.value_cache.dtype, tensors.output.dtype)
    if any(dtype.itemsize == 1 for dtype in types):
        return 1.5e-1, 1.5e-1
    return (1e-3, 1e-5) if tensors.query.dtype == torch.float32 else (1.5e-2, 1e-2)


def stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers as an output of that type holds them, in float64; fp8 is clamped to its finite range."""
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        numbers = numbers.clamp(-limit, limit).float()
    return numbers.to(dtype).double()


def _twice(tensors: AttentionTensors, expected: torch.Tensor) -> float:
    """Return FlashAttention's largest error for these tensors."""
    if not expected.numel():
        return 0.0
    plain = low_precision_output(tensors, expected)
    noise = (stored(stored(expected + 0.3, tensors.output.dtype) - 0.3, tensors.output.dtype) - expected).abs().max()
    return float((3 if tensors.softcap else 2) * (plain - expected).abs().max() + 2 * noise)


def low_precision_output(tensors: AttentionTensors, like: torch.Tensor) -> torch.Tensor:
    """Return the output of an implementation that keeps everything in the type of q, bfloat16 where that is fp8.

    It scales the keys, keeps scores, weights and output in that type, and sums in whatever torch sums in. Float64,
    shaped as ``like``.
    """
    working = torch.bfloat16 if tensors.query.dtype.itemsize == 1 else tensors.query.dtype
    output = torch.zeros_like(like).view(like.shape[0], tensors.num_kv_heads, -1, like.shape[-1])
    for block in row_blocks(tensors):
        output[block.tokens] = _attended(block, tensors, working).double().transpose(1, 2)
    return stored(output.view_as(like) * output_factor(tensors), tensors.output.dtype)


def _attended(block: RowBlock, tensors: AttentionTensors, working: torch.dtype) -> torch.Tensor:
    """Return the softmax's average of V ``[B, num_kv_heads, Q, group, head_size]``, everything in one type."""
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
    return (weights.flatten(2, 3) @ block.values.to(working)).view_as(block.queries)
