"""The loop that a test of a kernel often is: a random shape, the launcher, attention in torch on the GPU, a tolerance.

``naive_loop.py FAMILY SECONDS`` prints a JSON object for bench_gpu.py. Each case has a new shape, so that it compiles.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final

import torch

from fuzz_attn.kernels.chunked_prefill import chunked_prefill_paged_decode
from fuzz_attn.kernels.context_attention import context_attention_fwd
from fuzz_attn.kernels.paged_attention import paged_attention_decode
from fuzz_attn.kernels.unified_attention import unified_attention

TOLERANCE: Final = 2e-2


@dataclass
class Batch:
    """A batch of sequences: queries, and all keys and values, in a cache whose pages have a random order."""

    query_lens: list[int]
    seq_lens: list[int]
    q: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    block_size: int
    tables: torch.Tensor

    @property
    def starts(self) -> torch.Tensor:
        """Where the queries of each sequence start, and the end."""
        return torch.tensor([0, *self.query_lens], device="cuda").cumsum(0).to(torch.int32)

    @property
    def lens(self) -> torch.Tensor:
        """The length of each sequence."""
        return torch.tensor(self.seq_lens, device="cuda", dtype=torch.int32)

    def cached(self, each: list[torch.Tensor]) -> torch.Tensor:
        """Return a cache `[num_blocks, block_size, num_kv_heads, head_size]` with these keys or values."""
        pages = int(self.tables.max()) + 1
        cache = each[0].new_zeros(pages * self.block_size, *each[0].shape[1:])
        for table, rows in zip(self.tables, each, strict=True):
            key = torch.arange(len(rows), device="cuda")
            cache[table[key // self.block_size].long() * self.block_size + key % self.block_size] = rows
        return cache.view(pages, self.block_size, *cache.shape[1:])

    def new(self, each: list[torch.Tensor]) -> torch.Tensor:
        """Return the keys or values of the query tokens."""
        return torch.cat([rows[len(rows) - count :] for rows, count in zip(each, self.query_lens, strict=True)])

    def expected(self) -> torch.Tensor:
        """Return the attention of all queries, in float32."""
        bounds = pairwise(self.starts.tolist())
        rows = [
            _attention(self.q[start:end], keys, values)
            for (start, end), keys, values in zip(bounds, self.keys, self.values, strict=True)
        ]
        return torch.cat(rows)


def _attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention of the last tokens of one sequence."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (rows.float().repeat_interleave(group, 1) for rows in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * q.shape[2] ** -0.5
    ones = torch.ones(len(q), len(keys), device="cuda", dtype=torch.bool)
    scores = scores.masked_fill(ones.triu(len(keys) - len(q) + 1), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


def drawn(random: Random, family: str) -> Batch:
    """Return a random batch that a family can handle."""
    head_size, block_size, kv_heads = random.randint(1, 128), random.randint(1, 64), random.randint(1, 4)
    heads = kv_heads * random.randint(1, 4)
    dtype = random.choice([torch.float16, torch.bfloat16])
    query_lens = [1 if family == "paged" else random.choice([1, random.randint(1, 40)]) for _ in range(4)]
    seq_lens = [count + random.randint(0, 100) for count in query_lens]
    most = max(-(-length // block_size) for length in seq_lens)
    tables = torch.tensor(random.sample(range(4 * most), 4 * most), device="cuda", dtype=torch.int32).view(4, most)
    torch.manual_seed(random.getrandbits(32))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    return Batch(
        query_lens,
        seq_lens,
        normal(sum(query_lens), heads, head_size),
        [normal(length, kv_heads, head_size) for length in seq_lens],
        [normal(length, kv_heads, head_size) for length in seq_lens],
        block_size,
        tables,
    )


def launched(family: str, batch: Batch) -> torch.Tensor:
    """Return the output of a family's launcher."""
    out = torch.empty_like(batch.q)
    {"unified": _unified, "paged": _paged, "context": _context, "chunked": _chunked}[family](batch, out)
    return out


def _unified(batch: Batch, out: torch.Tensor) -> None:
    unified_attention(
        batch.q,
        batch.cached(batch.keys),
        batch.cached(batch.values),
        out,
        batch.starts,
        max(batch.query_lens),
        batch.lens,
        max(batch.seq_lens),
        batch.q.shape[2] ** -0.5,
        True,
        (-1, -1),
        batch.tables,
        0.0,
        None,
        None,
        None,
    )


def _split(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two caches in the split layout."""
    keys, values = (batch.cached(each).permute(0, 2, 3, 1) for each in (batch.keys, batch.values))
    return keys[..., None].contiguous(), values.contiguous()


def _paged(batch: Batch, out: torch.Tensor) -> None:
    paged_attention_decode(batch.q, out, *_split(batch), batch.tables, None, batch.lens, None, None)


def _context(batch: Batch, out: torch.Tensor) -> None:
    new, caches = (batch.new(batch.keys), batch.new(batch.values)), _split(batch)
    most = max(batch.seq_lens), max(batch.query_lens)
    context_attention_fwd(
        batch.q, *new, out, "auto", *caches, batch.tables, batch.starts, batch.lens, *most, None, None
    )


def _chunked(batch: Batch, out: torch.Tensor) -> None:
    new, caches = (batch.new(batch.keys), batch.new(batch.values)), _split(batch)
    most = max(batch.seq_lens), max(batch.query_lens)
    chunked_prefill_paged_decode(
        batch.q, *new, out, "auto", *caches, batch.tables, batch.starts, batch.lens, *most, None, None
    )


def main(family: str, seconds: float) -> None:
    """Print how many cases were judged in so many seconds, and how many failed."""
    random, cases, failed = Random(1), 0, 0
    launched(family, drawn(Random(0), family))
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        batch = drawn(random, family)
        actual, expected = launched(family, batch).float(), batch.expected()
        failed += not torch.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
        cases += 1
    print(json.dumps({"cases": cases, "seconds": time.monotonic() - began, "failed": failed}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
