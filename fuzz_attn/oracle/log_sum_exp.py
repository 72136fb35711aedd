"""Log-sum-exp: the exact logarithm of the sum of exponentials of each row, and the largest error of a correct kernel.

A kernel computes ``m + log(sum_j exp(z_j - m))`` with its own largest logit ``m``, in base 2 or e, of all keys at once
or of several segments whose results it adds in the same way. Its error has these parts, in natural exponents:

- Errors of the logits, those of the exponentials among them. ``m`` cancels, so the result lies between the exact ones
  for all logits as small and as large as they may be; the distance to the latter is larger, as the exponential is
  convex. An error that all keys of a row share counts, unlike in the softmax.
- A segment's result is rounded once, and its logarithm has an error. Both are errors of all logits of the segment.
- The relative error of the sum, ``s``, moves its logarithm by at most ``-log(1 - s)``.
- The logarithm's own error, the sum with ``m``, and the conversion between bases.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from fuzz_attn.case.recipes import LogSumExp
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle import allowed_roundings
from fuzz_attn.oracle.allowed_roundings import LOG_UNITS
from fuzz_attn.oracle.error_bound import probability_unit, smallest_bound, stored_bound
from fuzz_attn.oracle.logits import NO_SINK, SECOND_ORDER, Logits, tanh_shift
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import UNIT, gamma
from fuzz_attn.oracle.row_blocks import RowBlock

LAST_UNITS: Final = 3.0
"""Units that the sum with the largest logit, the product with log(2) or log2(e) and that constant lose, of the result
or of the largest logit. One of them is the last rounding."""

OF_NO_KEY: Final = {"-inf": -math.inf, "inf": math.inf, "0": 0.0}
"""The log-sum-exp of a row that sees no key, by the word of a recipe."""


def log_sum_exp(
    logits: Logits, block: RowBlock, form: LogSumExp, tensors: AttentionTensors, model: RoundingModel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-sum-exp of each row of a block and its bound, both ``[B, num_kv_heads, Q, group]``.

    No row is ill-conditioned: the bound is rigorous for logit errors of any size.
    """
    sink = logits.sink if form.with_sinks else torch.full_like(logits.sink, NO_SINK)
    terms, errors = _joined(logits.exact, sink), _joined(logits.error, logits.sink_error)
    exact = terms.logsumexp(-1)
    count = block.num_visible[:, None, :, None]
    logarithm = LOG_UNITS * UNIT * count.log1p().clamp_min(1.0)
    sizes = exact.abs()
    segments = torch.maximum(terms.clamp_min(NO_SINK).abs(), sizes[..., None]) * UNIT + logarithm[..., None]
    error = (terms + (errors + segments)).logsumexp(-1) - exact
    if logits.equal_rows is not None:
        error = error + tanh_shift(tensors.softcap, model) * logits.equal_rows[..., 0]
    error = error - (-_sum_units(logits, tensors, model)[..., 0]).log1p()
    converted = torch.maximum(sizes, logits.top[..., 0].abs()) * (LAST_UNITS * UNIT)
    error = (error + logarithm + converted) * SECOND_ORDER
    error = allowed_roundings.rounding_to(model.lse, tensors).after(exact, error, 1)
    if logits.overflows is not None:
        error = error.masked_fill(logits.overflows[..., 0], torch.inf)
    factor = 1.0 if form.base == "e" else 1.0 / math.log(2.0)
    value, bound = stored_bound(exact * factor, error * factor, torch.float32)
    if block.empty is None:
        return value, bound
    rows = block.empty[:, None, :, None]
    return value.masked_fill(rows, OF_NO_KEY[form.empty]), bound.masked_fill(rows, smallest_bound(torch.float32))


def _joined(keys: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Return the logits of the keys and of the sink along one axis."""
    return torch.cat([keys, sink.expand(*keys.shape[:-1], 1)], -1)


def _sum_units(logits: Logits, tensors: AttentionTensors, model: RoundingModel) -> torch.Tensor:
    """Return the relative error of the sum, in any order, with its rescalings and the sink: below 1, ``[..., 1]``."""
    terms = logits.terms.expand(*logits.exact.shape[:-1], 1)
    if logits.equal_rows is not None:
        terms = terms.masked_fill(logits.equal_rows, 0.0)
    units, cast = gamma(terms + 1.0, UNIT), probability_unit(tensors, model)
    found = allowed_roundings.denominator_units(units, logits.terms, logits.rescales, cast, tensors, model)
    return found.clamp_max(1.0)
