"""Emulation: attention in float64 with the roundings of a rounding model, each to nearest.

It shows the errors that a target probably makes, where the bound says how large they may be. A target that rounds like
the model has nearly the same errors, since roundings to nearest are the same in every program. Where a program is free
(how keys are split into segments, in which order numbers are added), only the size of the errors is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch

from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.logits import score_scale
from fuzz_attn.oracle.reference import output_factor
from fuzz_attn.oracle.rounding_model import RoundedTo, RoundingModel
from fuzz_attn.oracle.roundings import UNIT, dtype_of, query_dtype
from fuzz_attn.oracle.row_blocks import RowBlock

SEGMENT: Final = 64
"""Keys of a segment, where the model rounds partial outputs or their sums."""


@torch.inference_mode()
def emulate(tensors: AttentionTensors, model: RoundingModel, blocks: Iterable[RowBlock]) -> torch.Tensor:
    """Return the output ``[num_tokens, num_query_heads, head_size]`` of a launch, float64 and rounded as stored."""
    rows = sum(tensors.query_lens)
    output = torch.zeros(rows, *tensors.output.shape[1:], dtype=torch.float64, device=tensors.query.device)
    for block in blocks:
        result = _Emulation(block, tensors, model).output()
        output[block.tokens] = result.transpose(1, 2).flatten(2, 3)
    return output


@dataclass(frozen=True)
class _Emulation:
    """One block of rows; scores are ``[B, num_kv_heads, Q, group, K]``."""

    block: RowBlock
    tensors: AttentionTensors
    model: RoundingModel

    def rounded(self, name: RoundedTo, numbers: torch.Tensor) -> torch.Tensor:
        """Return numbers rounded to a type; to float32 not at all."""
        return numbers if name == "float32" else numbers.to(dtype_of(name, self.tensors)).double()

    def output(self) -> torch.Tensor:
        """Return the output as it is stored, ``[B, num_kv_heads, Q, group, head_size]``."""
        result = self.rounded(self.model.output, self._average(self._scores()))
        result = result * output_factor(self.tensors)
        dtype = self.tensors.output.dtype
        if is_fp8_dtype(dtype):
            limit = torch.finfo(dtype).max
            result = result.clamp(-limit, limit)
        return result.to(dtype).double()

    def _scores(self) -> torch.Tensor:
        name, tensors, block = self.model.scores, self.tensors, self.block
        scale = torch.tensor(score_scale(tensors), dtype=torch.float64, device=block.keys.device)
        queries = self._queries()
        if self.model.scaled_query != "float32":
            queries = self.rounded(self.model.scaled_query, queries * self.rounded(self.model.scaled_query, scale))
            scale = scale / scale
        scores = self._dot(queries, block.keys.transpose(-1, -2), query_dtype(tensors, self.model))
        scores = scores.view(*block.queries.shape[:4], -1)
        scores = self.rounded(name, self.rounded(name, scores) * scale)
        cap = tensors.softcap
        if cap:
            scores = self.rounded(name, self.rounded(name, self._tanh(self.rounded(name, scores / cap))) * cap)
        for bias in self._biases():
            scores = self.rounded(name, scores + self.rounded(name, bias))
        return scores.masked_fill(block.hidden, -torch.inf)

    def _queries(self) -> torch.Tensor:
        """Return q, clamped to the range of the type that it is rounded to."""
        queries, name = self.block.queries.flatten(2, 3), self.model.query
        if name == "float32":
            return queries
        limit = torch.finfo(dtype_of(name, self.tensors)).max
        return self.rounded(name, queries.clamp(-limit, limit))

    def _biases(self) -> list[torch.Tensor]:
        block, slopes = self.block, self.tensors.alibi_slopes
        found = []
        if slopes is not None:
            distance = (block.key_position - block.context_len[:, None]).double()
            found.append(slopes.double().view(block.keys.shape[1], 1, -1, 1) * distance[:, None, None, None])
        if block.qq_bias is not None:
            found.append(block.qq_bias[:, None, :, None])
        return found

    def _tanh(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return tanh with half of its error, up and down by turns."""
        exact, model = numbers.tanh(), self.model
        size = model.tanh_error if model.tanh_units is None else exact.abs() * (model.tanh_units * UNIT)
        return exact + _noise(exact) * size

    def _average(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the average of V, of one segment or of several that are merged."""
        model, width = self.model, scores.shape[-1]
        split = model.partials != "float32" or model.lse != "float32"
        size = SEGMENT if split else width
        parts = [self._segment(scores, slice(first, first + size)) for first in range(0, width, size)]
        lse = [self.rounded(model.lse, each) for each, _ in parts] if len(parts) > 1 else [parts[0][0]]
        if self.tensors.sinks is not None:
            shape = (self.block.keys.shape[1], 1, scores.shape[3], 1)
            lse.append(self.rounded(model.scores, self.tensors.sinks.double().view(shape)).expand_as(lse[0]))
        total = torch.stack(lse).logsumexp(0)
        shares = [(each - total).exp() for each in lse]
        pairs = zip(shares, parts, strict=False)
        return torch.stack([share * self.rounded(model.partials, part) for share, (_, part) in pairs]).sum(0)

    def _segment(self, scores: torch.Tensor, keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logarithm of the sum of exponentials of some keys, and their average of V."""
        model, tile, values = self.model, scores[..., keys], self.block.values[:, :, keys]
        top = tile.amax(-1, keepdim=True)
        exponents = self.rounded(model.softmax, tile - top.clamp_min(-1e30))
        weights = exponents.exp()
        if model.exp_units > 2**7:
            weights = weights * (1 + _noise(weights) * (weights < 1.0) * (model.exp_units * UNIT))
        weights = self.rounded(model.softmax, weights)
        cast = self.rounded(model.probability, weights)
        total = self.rounded(model.softmax, (cast if model.rounded_denominator else weights).sum(-1, keepdim=True))
        sums = self._dot(cast.flatten(2, 3), values, dtype_of(model.probability, self.tensors))
        sums = sums.view(*weights.shape[:4], values.shape[-1])
        return top + total.log(), sums / total.clamp_min(1e-300)

    def _dot(self, rows: torch.Tensor, columns: torch.Tensor, operands: torch.dtype) -> torch.Tensor:
        """Return a product of matrices; a narrow sum is added in order."""
        model = self.model
        if model.products != "float32" or model.accumulate != "float32":
            total = rows.new_zeros(*rows.shape[:-1], columns.shape[-1])
            for n in range(rows.shape[-1]):
                product = self.rounded(model.products, rows[..., n, None] * columns[..., n, None, :])
                total = self.rounded(model.accumulate, total + product)
            return total
        if operands != torch.float32 or model.input_precision == "ieee":
            return rows @ columns
        if model.input_precision == "tf32":
            return _cut(rows) @ _cut(columns)
        low, other = (each - each.bfloat16().double() for each in (rows, columns))
        return rows @ columns - (low @ other if model.input_precision == "bf16x3" else 0.0)


def _cut(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers cut to tf32."""
    return (numbers.float().contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32).double()


def _noise(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers between -1/2 and 1/2 that depend on the low bits of others."""
    return (numbers.float().contiguous().view(torch.int32) % 1021).double() / 1021 - 0.5
