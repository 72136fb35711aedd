"""Unified paged attention in plain torch that rounds as some correct kernels do, each function in one way.

``ROUNDINGS`` states the rounding model of each: it fits no other. ``float32_attention`` rounds like the default model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch_attention import (  # type: ignore[import-not-found] # found beside this file, as a user's is
    Mistakes,
    biases,
    gathered,
    readable,
    stored,
    unified_attention,
)

RIGHT = Mistakes()
TILE = 32
TILES_OF_A_SEGMENT = 3

ROUNDINGS: dict[str, dict[str, Any]] = {}
"""The fields of the rounding model of each function."""


@dataclass(frozen=True)
class Arithmetic:
    """How a variant rounds.

    Types are names of torch's; ``own`` is the type of q, bfloat16 for fp8, and ``cache`` that of K and V.
    """

    query: str = "float32"
    scaled_query: str = "float32"
    products: str = "float32"
    accumulate: str = "float32"
    scores: str = "float32"
    softmax: str = "float32"
    probability: str = "own"
    partials: str = "float32"
    lse: str = "float32"
    output: str = "float32"
    split: str = ""
    """What operands of a dot are split into: ``cut`` to tf32, or two parts in bfloat16."""
    rounded_denominator: bool = False
    tanh: Callable[[torch.Tensor], torch.Tensor] = torch.tanh
    exp: Callable[[torch.Tensor], torch.Tensor] = torch.exp


@dataclass(frozen=True)
class Rounds:
    """Rounds to the types of an arithmetic."""

    how: Arithmetic
    own: torch.dtype
    cache: torch.dtype

    def to(self, name: str, numbers: torch.Tensor) -> torch.Tensor:
        """Return float32 numbers rounded to a type of the arithmetic."""
        kind = getattr(self.how, name)
        dtype = {"own": self.own, "cache": self.cache}.get(kind) or getattr(torch, kind)
        limit = torch.finfo(dtype).max if dtype.itemsize == 1 else torch.inf
        return numbers.clamp(-limit, limit).to(dtype).float()

    def dot(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return the product of matrices ``[heads, rows, n]`` and ``[heads, n, columns]``."""
        narrow = self.how.accumulate != "float32" or self.how.products != "float32"
        if not narrow:
            return sum(left @ right for left, right in self._parts(rows, columns))  # type: ignore[return-value] # never empty
        total = torch.zeros(*rows.shape[:2], columns.shape[2])
        for n in range(rows.shape[2]):
            product = self.to("products", rows[:, :, n, None] * columns[:, None, n])
            total = self.to("accumulate", total + product)
        return total

    def _parts(self, rows: torch.Tensor, columns: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if not self.how.split or self.own != torch.float32:
            return [(rows, columns)]
        if self.how.split == "cut":
            return [(cut(rows), cut(columns))]
        (high, low), (other_high, other_low) = in_two(rows), in_two(columns)
        return [(low, other_high), (high, other_low), (high, other_high)]


def cut(numbers: torch.Tensor) -> torch.Tensor:
    """Return float32 numbers without their 13 low bits, as a tensor core reads them for tf32."""
    return (numbers.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def in_two(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two parts in bfloat16 that a split for bf16x3 makes."""
    high = numbers.bfloat16().float()
    return high, (numbers - high).bfloat16().float()


def with_bits(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Return numbers rounded to some significant bits."""
    mantissa, exponent = torch.frexp(numbers)
    return torch.ldexp(torch.round(mantissa * 2**bits), exponent - bits)


def _attend(how: Arithmetic, **given: Any) -> None:
    starts, lengths = given["cu_seqlens_q"].tolist(), given["seqused_k"].tolist()
    own = torch.bfloat16 if given["q"].dtype.itemsize == 1 else given["q"].dtype
    rounds = Rounds(how, own, given["k"].dtype)
    for index, seq_len in enumerate(lengths):
        rows = slice(starts[index], starts[index + 1])
        if rows.start < rows.stop:
            result = _attend_one(given, index, rows, seq_len, rounds)
            given["out"][rows] = _stored(result, given, rounds)


def _stored(result: torch.Tensor, given: dict[str, Any], rounds: Rounds) -> torch.Tensor:
    dtype: torch.dtype = given["out"].dtype
    return stored(rounds.to("output", result), dtype, given["output_scale"])  # type: ignore[no-any-return] # untyped import


def _attend_one(given: dict[str, Any], index: int, rows: slice, seq_len: int, rounds: Rounds) -> torch.Tensor:
    """Return the rows of one sequence; scores are ``[heads, queries, keys]``."""
    query = rounds.to("query", given["q"][rows].float())
    context_len = seq_len - query.shape[0]
    left = given["window_size"][0]
    window = left + 1 if left >= 0 else seq_len
    positions = readable(seq_len, context_len, window, given["k"].shape[1], RIGHT)
    keys = gathered(given["k"], given, index, positions, given["k_descale"]).permute(1, 2, 0)
    values = gathered(given["v"], given, index, positions, given["v_descale"]).permute(1, 0, 2)
    scores = _scores(query.permute(1, 0, 2), keys, given, rounds)
    if given["alibi_slopes"] is not None or given["qq_bias"] is not None:
        bias = biases(given, query.shape[0], positions - context_len, RIGHT)
        scores = rounds.to("scores", scores + rounds.to("scores", bias))
    distance = (context_len + torch.arange(query.shape[0]))[:, None] - positions
    scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
    return _merged(scores, values, given["sinks"], rounds).permute(1, 0, 2)


def _scores(query: torch.Tensor, keys: torch.Tensor, given: dict[str, Any], rounds: Rounds) -> torch.Tensor:
    scale, cap = torch.tensor(given["softmax_scale"]), given["softcap"]
    if rounds.how.scaled_query != "float32":
        query, scale = rounds.to("scaled_query", query * rounds.to("scaled_query", scale)), torch.tensor(1.0)
    scores = rounds.to("scores", rounds.to("scores", rounds.dot(query, keys)) * scale)
    if cap > 0:
        scores = rounds.to("scores", rounds.how.tanh(rounds.to("scores", scores / cap)))
        scores = rounds.to("scores", scores * cap)
    return scores


Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The maximum, the sum of exponentials and the average of a segment, ``[heads, queries, 1 or head_size]``."""


def _merged(scores: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None, rounds: Rounds) -> torch.Tensor:
    """Return the average of V over all segments; each keeps the logarithm of its sum, and its average."""
    size = TILE * TILES_OF_A_SEGMENT
    parts = [
        _segment(scores[..., first : first + size], values[:, first : first + size], rounds)
        for first in range(0, scores.shape[-1], size)
    ]
    lse = [rounds.to("lse", top + total.log()) for top, total, _ in parts]
    if sinks is not None:
        lse.append(rounds.to("scores", sinks.float())[:, None, None].expand_as(lse[0]))
    most = torch.stack(lse).amax(0)
    shares = [(each - most).exp() for each in lse]
    total = torch.stack(shares).sum(0)
    if len(lse) == 1:
        shares, total = [torch.ones_like(total)], torch.ones_like(total)
    averages = [share * rounds.to("partials", part[2]) for share, part in zip(shares, parts, strict=False)]
    return torch.stack(averages).sum(0) / total


def _segment(scores: torch.Tensor, values: torch.Tensor, rounds: Rounds) -> Part:
    """Return an online softmax over tiles of keys. A row without visible keys has the sum 0."""
    top = torch.full((*scores.shape[:2], 1), -torch.inf)
    total, sums = torch.zeros_like(top), torch.zeros(*scores.shape[:2], values.shape[2])
    for first in range(0, scores.shape[-1], TILE):
        tile, value = scores[..., first : first + TILE], values[:, first : first + TILE]
        new = torch.maximum(top, tile.amax(-1, keepdim=True))
        base = new.masked_fill(new.isinf(), 0.0)
        alpha = _exponential(top - base, rounds)
        weights = _exponential(tile - base, rounds)
        cast = rounds.to("probability", weights)
        summed = cast if rounds.how.rounded_denominator else weights
        total = rounds.to("softmax", rounds.to("softmax", total * alpha) + summed.sum(-1, keepdim=True))
        sums = rounds.to("accumulate", rounds.to("accumulate", sums * alpha) + rounds.dot(cast, value))
        top = new
    return top, total, sums / total.clamp_min(1e-30)


def _exponential(difference: torch.Tensor, rounds: Rounds) -> torch.Tensor:
    return rounds.to("softmax", rounds.how.exp(rounds.to("softmax", difference)))


def _attend_plainly(softmax: Callable[[torch.Tensor], torch.Tensor], **given: Any) -> None:
    """Compute all in the type of q, as plain torch code does."""
    starts, lengths = given["cu_seqlens_q"].tolist(), given["seqused_k"].tolist()
    for index, seq_len in enumerate(lengths):
        rows = slice(starts[index], starts[index + 1])
        if rows.start < rows.stop:
            result = _attend_one_plainly(softmax, given, index, rows, seq_len)
            given["out"][rows] = stored(result.float(), given["out"].dtype, given["output_scale"])


def _attend_one_plainly(
    softmax: Callable[[torch.Tensor], torch.Tensor], given: dict[str, Any], index: int, rows: slice, seq_len: int
) -> torch.Tensor:
    query, own = given["q"][rows].permute(1, 0, 2), given["q"].dtype
    context_len, left = seq_len - query.shape[1], given["window_size"][0]
    window = left + 1 if left >= 0 else seq_len
    positions = readable(seq_len, context_len, window, given["k"].shape[1], RIGHT)
    keys = gathered(given["k"], given, index, positions, given["k_descale"]).to(own).permute(1, 2, 0)
    values = gathered(given["v"], given, index, positions, given["v_descale"]).to(own).permute(1, 0, 2)
    scores = query @ keys * given["softmax_scale"]
    if given["softcap"] > 0:
        scores = given["softcap"] * (scores / given["softcap"]).tanh()
    if given["alibi_slopes"] is not None or given["qq_bias"] is not None:
        scores = scores + biases(given, query.shape[1], positions - context_len, RIGHT).to(own)
    distance = (context_len + torch.arange(query.shape[1]))[:, None] - positions
    scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
    if given["sinks"] is not None:
        sinks = given["sinks"].to(own)[:, None, None].expand(*scores.shape[:2], 1)
        scores = torch.cat((scores, sinks), -1)
    result: torch.Tensor = softmax(scores)[..., : len(positions)] @ values
    return result.permute(1, 0, 2)


def _softmax_by_hand(scores: torch.Tensor) -> torch.Tensor:
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def _rounding(name: str, how: Arithmetic, **fields: Any) -> Callable[..., None]:
    """Return a function that rounds in one way, and enter its rounding model."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        _attend(how, **given)

    ROUNDINGS[name] = fields
    return variant


def _narrow(name: str, **types: Any) -> Callable[..., None]:
    """Return a function that rounds to types, which its rounding model names likewise."""
    fields = {key: "query" if value == "own" else value for key, value in types.items()}
    return _rounding(name, Arithmetic(**types), **fields)


float32_attention = _rounding("float32_attention", Arithmetic())
scaled_query = _narrow("scaled_query", scaled_query="own")
bfloat16_query = _narrow("bfloat16_query", scaled_query="bfloat16")
own_products = _narrow("own_products", products="own")
half_sums = _narrow("half_sums", products="float16", accumulate="float16")
own_scores = _narrow("own_scores", scores="own")
bfloat16_scores = _narrow("bfloat16_scores", scores="bfloat16")
half_scores = _narrow("half_scores", scores="float16")
own_softmax = _narrow("own_softmax", softmax="own")
own_partials = _narrow("own_partials", partials="own")
bfloat16_partials = _narrow("bfloat16_partials", partials="bfloat16")
own_lse = _narrow("own_lse", lse="own")
bfloat16_output = _narrow("bfloat16_output", output="bfloat16")
own_output = _narrow("own_output", output="own")
bfloat16_weights = _narrow("bfloat16_weights", probability="bfloat16")
fp8_weights = _narrow("fp8_weights", probability="float8_e4m3fn")
cache_operands = _narrow("cache_operands", query="cache", probability="cache")
rounded_denominator = _narrow("rounded_denominator", rounded_denominator=True)
tf32_dots = _rounding("tf32_dots", Arithmetic(split="cut"), input_precision="tf32")
bf16x3_dots = _rounding("bf16x3_dots", Arithmetic(split="two"), input_precision="bf16x3")
tanh_approx = _rounding("tanh_approx", Arithmetic(tanh=lambda x: with_bits(x.tanh(), 11)), tanh_units=2.0**13 + 4)
tanh_table = _rounding(
    "tanh_table", Arithmetic(tanh=lambda x: (x.tanh() * 2**10).round() / 2**10), tanh_error=2.0**-11 + 2.0**-21
)
coarse_exp = _rounding("coarse_exp", Arithmetic(exp=lambda x: with_bits(x.exp(), 12)), exp_units=2.0**12 + 6)


@wraps(unified_attention)
def plain_torch(**given: Any) -> None:
    """Write the attention of every query token into ``out``, computed in the type of q."""
    _attend_plainly(lambda scores: scores.softmax(-1), **given)


@wraps(unified_attention)
def softmax_by_hand(**given: Any) -> None:
    """Write the attention of every query token into ``out``, computed in the type of q, the softmax too."""
    _attend_plainly(_softmax_by_hand, **given)


ROUNDINGS["plain_torch"] = {"scores": "query", "output": "query"}
ROUNDINGS["softmax_by_hand"] = {"scores": "query", "softmax": "query", "output": "query"}
