"""The tensors of a case: every input and the poisoned output of one attention call, on one device."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from fuzz_attn import biases
from fuzz_attn.case import AttentionCase, DTypeName, is_fp8
from fuzz_attn.memory import cache_views, dense_memory, heads_view, rounded, strided, tensor_of, tensors_over
from fuzz_attn.pages import PageMap, page_map
from fuzz_attn.poison import TORCH_DTYPES, output_poison, slot_poison, table_poison
from fuzz_attn.streams import Floats
from fuzz_attn.values import Numbers, numbers_of


@dataclass(frozen=True)
class AttentionTensors:
    """What one attention call reads and writes, by the glossary's names.

    ``query`` and ``output`` ``[num_tokens + padded_tokens, num_query_heads, head_size]``; ``key_cache`` and
    ``value_cache`` ``[num_blocks, block_size, num_kv_heads, head_size]``, any strides with the last one 1;
    ``query_start_loc`` int32 ``[num_seqs + 1]``; ``seq_lens`` int32 ``[num_seqs]``; ``block_table`` int32
    ``[num_seqs, max_blocks]``. Scales are one-element float32 tensors, None where the type is not fp8.
    ``alibi_slopes`` float32 and ``sinks`` ``[num_query_heads]``; ``qq_bias`` float32 ``[rows, columns]``.
    ``window`` 0 and ``softcap`` 0 are none. ``softmax_scale`` and ``softcap`` are float32 values already.
    """

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    output: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    query_lens: tuple[int, ...]
    """The query lengths on the host; ``query_start_loc`` holds their prefix sums."""
    context_lens: tuple[int, ...]
    """The context lengths on the host; ``seq_lens`` holds context plus query."""
    softmax_scale: float
    window: int = 0
    softcap: float = 0.0
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    out_scale: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    qq_bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    output_poison: int = 0
    """The bits of an output element not yet written."""

    @property
    def max_query_len(self) -> int:
        """The longest query of the batch; 0 for an empty one."""
        return max(self.query_lens, default=0)

    @property
    def max_seq_len(self) -> int:
        """The longest sequence of the batch; 0 for an empty one."""
        return max((q + c for q, c in zip(self.query_lens, self.context_lens, strict=True)), default=0)

    def inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and tensor of everything that an attention call must leave as it is."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor) and field.name != "output":
                yield field.name, value


def materialise(case: AttentionCase, device: str = "cpu") -> AttentionTensors:
    """Return the tensors of a case, the same bits on every machine and device."""
    numbers, pages = numbers_of(case), page_map(case)
    key_cache, value_cache = _caches(case, numbers, pages, device)
    starts = list(accumulate((s.query_len for s in case.sequences), initial=0))
    seq_lens = [s.seq_len for s in case.sequences]
    return AttentionTensors(
        query=_query(case, numbers.queries, device),
        key_cache=key_cache,
        value_cache=value_cache,
        output=_output(case, device),
        query_start_loc=_integers(starts, device),
        seq_lens=_integers(seq_lens, device),
        block_table=_block_table(case, pages, device),
        query_lens=tuple(s.query_len for s in case.sequences),
        context_lens=tuple(s.context_len for s in case.sequences),
        softmax_scale=float(np.float32(case.softmax_scale)),
        window=case.window,
        softcap=float(np.float32(case.softcap)),
        q_scale=_scale(case.scales.q, case.dtypes.q, device),
        k_scale=_scale(case.scales.k, case.dtypes.kv, device),
        v_scale=_scale(case.scales.v, case.dtypes.kv, device),
        out_scale=_scale(case.scales.out, case.dtypes.out, device),
        alibi_slopes=_slopes(case, device),
        qq_bias=_qq_bias(case, device),
        sinks=_sinks(case, device),
        output_poison=output_poison(case.dtypes.out, case.poison.out),
    )


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole memory that a tensor is a view of, as uint8, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def digest_of(tensors: AttentionTensors) -> str:
    """Return 16 hexadecimal digits over all inputs' memory and the poisoned output; a drift of generation shows."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in (*tensors.inputs(), ("output", tensors.output)):
        layout = f"{tuple(tensor.shape)}{tensor.stride()}{tensor.storage_offset()}"
        digest.update(f"{name}{tensor.dtype}{layout}".encode())
        digest.update(storage_bytes(tensor).cpu().numpy().tobytes())
    return digest.hexdigest()


def _query(case: AttentionCase, queries: Floats, device: str) -> torch.Tensor:
    strides, dtype = case.strides, case.dtypes.q
    poison = slot_poison(dtype, "nan")
    memory = dense_memory(case, dtype, poison, strides.q_token, strides.q_head)
    view = heads_view(memory, case.heads.num_query_heads, strides.q_head, case.heads.head_size)
    view[: case.num_tokens] = rounded(queries, dtype, case.scales.q)
    return tensors_over(memory, (view,), TORCH_DTYPES[dtype], device, guard=poison)[0]


def _output(case: AttentionCase, device: str) -> torch.Tensor:
    strides, dtype = case.strides, case.dtypes.out
    poison = output_poison(dtype, case.poison.out)
    memory = dense_memory(case, dtype, poison, strides.out_token, strides.out_head)
    view = heads_view(memory, case.heads.num_query_heads, strides.out_head, case.heads.head_size)
    return tensors_over(memory, (view,), TORCH_DTYPES[dtype], device, guard=poison)[0]


def _caches(case: AttentionCase, numbers: Numbers, pages: PageMap, device: str) -> tuple[torch.Tensor, ...]:
    """Return both caches: the slots that some row may read hold numbers, everything else poison."""
    dtype = case.dtypes.kv
    memory, views = cache_views(case, pages.num_blocks)
    poisons = slot_poison(dtype, case.poison.keys), slot_poison(dtype, case.poison.values)
    for block, poison in zip(memory, poisons, strict=False):
        block[...] = poison
    blocks, offsets = np.divmod(pages.slots[pages.visible], case.pages.block_size)
    arrays, scales = (numbers.keys, numbers.values), (case.scales.k, case.scales.v)
    for view, poison, array, scale in zip(views, poisons, arrays, scales, strict=True):
        view[...] = poison
        view[blocks, offsets] = rounded(array[pages.visible], dtype, scale)
    torch_dtype = TORCH_DTYPES[dtype]
    if len(memory) == 1:
        return tensors_over(memory[0], views, torch_dtype, device, guard=poisons[0])
    return tuple(
        tensors_over(block, (view,), torch_dtype, device, guard=poison)[0]
        for block, view, poison in zip(memory, views, poisons, strict=True)
    )


def _block_table(case: AttentionCase, pages: PageMap, device: str) -> torch.Tensor:
    sequences, width = pages.block_table.shape
    garbage = table_poison(case.poison.table, pages.num_blocks)
    memory = np.full((sequences, width + case.strides.block_table), garbage, dtype=np.int32)
    view = strided(memory, (sequences, width), (width + case.strides.block_table, 1))
    view[...] = pages.block_table
    return tensors_over(memory, (view,), torch.int32, device, guard=garbage)[0]


def _integers(numbers: list[int], device: str) -> torch.Tensor:
    return tensor_of(np.array(numbers, np.int32), torch.int32, device, guard=2**31 - 1)


def _floats(numbers: Floats, device: str) -> torch.Tensor:
    return tensor_of(numbers.view(np.uint32), torch.float32, device, guard=slot_poison("float32", "nan"))


def _scale(scale: float, dtype: DTypeName, device: str) -> torch.Tensor | None:
    return _floats(np.array([scale], np.float32), device) if is_fp8(dtype) else None


def _slopes(case: AttentionCase, device: str) -> torch.Tensor | None:
    return None if case.alibi is None else _floats(biases.alibi_slopes(case.alibi, case), device)


def _qq_bias(case: AttentionCase, device: str) -> torch.Tensor | None:
    if case.qq_bias is None:
        return None
    matrix = biases.qq_bias(case.qq_bias, case)
    memory = matrix.padded.view(np.uint32)
    guard = slot_poison("float32", "nan")
    return tensors_over(memory, (memory[:, : matrix.columns],), torch.float32, device, guard=guard)[0]


def _sinks(case: AttentionCase, device: str) -> torch.Tensor | None:
    if case.sinks is None:
        return None
    dtype = case.sinks.dtype
    bits = rounded(biases.sinks(case.sinks, case), dtype)
    return tensor_of(bits, TORCH_DTYPES[dtype], device, guard=slot_poison(dtype, "nan"))
