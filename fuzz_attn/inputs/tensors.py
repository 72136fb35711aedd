"""Tensors: every input and the poisoned outputs of one attention call, on one device, and the store of its keys."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.case.attention_case import AttentionCase, far_length
from fuzz_attn.case.cache_layout import CacheFormat
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import CallForm, DTypeName, FarAxis, LaunchHints, is_fp8
from fuzz_attn.case.recipes import CAUSAL, BiasDType, Custom, LogSumExp, Mask, QQBiasRecipe, SlotPoison
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.batch_rows import Bits as Masked
from fuzz_attn.inputs.batch_rows import PageMap, custom_masks, needed_keys, needed_of_batch, page_map, rows_of
from fuzz_attn.inputs.numbers import Numbers, alibi_slopes, numbers_of, qq_bias, sinks
from fuzz_attn.inputs.output_tensors import CallTensors, OutputTensor
from fuzz_attn.inputs.random_bits import Floats
from fuzz_attn.inputs.storage import (
    BIAS_DTYPES,
    TORCH_DTYPES,
    Bits,
    bias_bits,
    bias_poison,
    bits_of,
    cache_memory,
    heads_view,
    is_fp8_dtype,
    output_poison,
    packed_memory,
    poisoned,
    rounded,
    slot_poison,
    spread,
    stride_of,
    strided,
    table_poison,
    tensor_of,
    tensors_over,
    with_large_offsets,
)


@dataclass(frozen=True)
class AttentionTensors(CallTensors):
    """What one attention call reads and writes, by the glossary's names.

    ``query`` is ``[num_tokens + padded_tokens, num_query_heads, head_size]``. ``outputs`` are those of :data:`OUTPUTS`
    by their names; ``out``, with heads of the size of a value, may have more rows than the query.
    ``key_cache`` and ``value_cache`` have the axes of the cache format
    (:mod:`fuzz_attn.case.cache_layout`) and any strides with the last one 1; :meth:`keys_at` and :meth:`values_at`
    read them by slot. ``new_keys`` and ``new_values`` are
    ``[num_tokens + padded_tokens or more, num_kv_heads, head_size]`` in q's type, None where every key is read from the
    cache.
    ``query_start_loc`` is int32 ``[num_seqs + 1]``, ``seq_lens`` int32 ``[num_seqs]``, ``block_table`` int32
    ``[num_seqs or more, max_blocks]``. Scales are one-element float32 tensors, None where the type is not fp8.
    ``alibi_slopes`` and ``sinks`` are ``[num_query_heads]``, ``qq_bias`` is ``[rows, columns]``.
    ``window`` 0 and ``softcap`` 0 are none. ``softmax_scale`` and ``softcap`` are exact in float32.
    """

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    outputs: dict[str, OutputTensor]
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    query_lens: tuple[int, ...]
    """The query lengths on the host; ``query_start_loc`` holds their prefix sums."""
    context_lens: tuple[int, ...]
    """The context lengths on the host; ``seq_lens`` holds context plus query."""
    softmax_scale: float
    window: int = 0
    mask: Mask = CAUSAL
    custom_mask: torch.Tensor | None = None
    """The bits of a custom mask, bool: ``[query_len, seq_len]`` of each sequence, one after the other."""
    softcap: float = 0.0
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    out_scale: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    qq_bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    new_keys: torch.Tensor | None = None
    new_values: torch.Tensor | None = None
    launch: LaunchHints = field(default_factory=LaunchHints)
    """How the launcher should run; no number depends on it."""
    form: CallForm = field(default_factory=CallForm)
    """How arguments are passed; no number depends on it."""
    family: Family = "unified"
    kv_dtype: torch.dtype = torch.float32
    """The type of the numbers in the caches, which may be passed as uint8."""
    answers: tuple[bool, ...] = ()
    """For each sequence, whether the target writes its rows; the others are not live in the outputs. Empty: all."""
    filter_by_query_len: bool = False
    """Whether the target must skip the sequences of the other family."""
    reads_packed: tuple[bool, ...] = ()
    """For each sequence, whether its keys from the context on are read from ``new_keys``. Empty: none."""
    index_poison: int = 2**31 - 1
    """What entries of a list of indices hold that no kernel may use."""
    ragged_splits: bool = False
    """Whether each sequence has a number of splits of its own."""
    first_block: int = 0
    """The first page of the caches that has memory; the pages before it are addresses that no kernel may touch."""
    stored_as: CacheFormat | None = None
    """The format of the caches where it is not the family's own."""
    lse: LogSumExp | None = None
    """The form of the output ``lse``, None for a case without it."""

    @property
    def visibility(self) -> Visibility:
        """Which keys the query tokens see, custom masks and biases of minus infinity apart."""
        return Visibility(self.window, self.mask)

    def mask_of(self, sequence: int) -> Masked | None:
        """Return which keys of a sequence each row sees by bits ``[query_len, seq_len]``, on the host; None without."""
        if self.custom_mask is None:
            return None
        sizes = self.mask_sizes
        first, query_len = sum(sizes[:sequence]), self.query_lens[sequence]
        shape = query_len, query_len + self.context_lens[sequence]
        return self.custom_mask[first : first + sizes[sequence]].view(shape).cpu().numpy()

    @property
    def has_bits(self) -> bool:
        """Whether :meth:`mask_of` says for single keys which rows see them."""
        return self.custom_mask is not None

    @property
    def mask_sizes(self) -> list[int]:
        """The bits of a custom mask that each sequence has."""
        return [q * (q + c) for q, c in zip(self.query_lens, self.context_lens, strict=True)]

    def needed_keys(self, sequence: int) -> Masked:
        """Return bool ``[seq_len]``: whether a kernel may need a key of a sequence."""
        lengths = self.query_lens[sequence], self.context_lens[sequence]
        return needed_keys(self.visibility, *lengths, self.mask_of(sequence))

    @property
    def max_query_len(self) -> int:
        """The longest query of the batch; 0 for an empty one."""
        return max(self.query_lens, default=0)

    @property
    def max_seq_len(self) -> int:
        """The longest sequence of the batch; 0 for an empty one."""
        return max((q + c for q, c in zip(self.query_lens, self.context_lens, strict=True)), default=0)

    @property
    def cache_format(self) -> CacheFormat:
        """Which axis of the caches means what."""
        return self.stored_as or FAMILIES[self.family].cache

    @property
    def num_kv_heads(self) -> int:
        """KV heads of the caches."""
        return self.key_cache.shape[self.cache_format.head_axis]

    @property
    def block_size(self) -> int:
        """Slots of a page."""
        return self.key_cache.shape[self.cache_format.slot_axis]

    @property
    def key_slots(self) -> torch.Tensor:
        """The key cache as ``[num_blocks, block_size, num_kv_heads, ...]``; the rest is the head size or its pieces."""
        return self.key_cache.permute(self.cache_format.key_axes)

    @property
    def value_slots(self) -> torch.Tensor:
        """The value cache as ``[num_blocks, block_size, num_kv_heads, head_size]``."""
        return self.value_cache.permute(self.cache_format.value_axes)

    @property
    def output(self) -> torch.Tensor:
        """The attention output, ``[num_tokens or more, num_query_heads, head_size]``."""
        return self.outputs["out"].tensor

    def keys_at(self, block: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """Return the stored keys ``[..., num_kv_heads, head_size]`` at integer indices, in ``kv_dtype``."""
        return self._typed(taken(self.key_slots, (block, slot)).flatten(block.dim() + 1))

    def values_at(self, block: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        """Return the stored values ``[..., num_kv_heads, head_size]`` at integer indices, in ``kv_dtype``."""
        return self._typed(taken(self.value_slots, (block, slot)))

    def _typed(self, stored: torch.Tensor) -> torch.Tensor:
        return stored.view(self.kv_dtype) if stored.dtype == torch.uint8 else stored

    def void_before(self, tensor: torch.Tensor) -> int:
        """Return how many bytes at the start of the storage of one of these tensors, or of its view, have no memory."""
        for cache in (self.key_cache, self.value_cache) if self.first_block else ():
            if tensor.data_ptr() == cache.data_ptr():
                return self.first_block * cache.stride(0) * cache.element_size()
        return 0

    def near(self) -> AttentionTensors:
        """Return the same problem with only those pages of the caches that have memory.

        For code that reads whole caches. The new caches are views of these. Table entries past the last page change.
        """
        first = self.first_block
        if not first:
            return self
        return dataclasses.replace(
            self,
            key_cache=self.key_cache[first:],
            value_cache=self.value_cache[first:],
            block_table=self.block_table - first,
            first_block=0,
        )

    def inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and tensor of everything that an attention call must not change."""
        yield from self._inputs

    @cached_property
    def _inputs(self) -> tuple[tuple[str, torch.Tensor], ...]:
        named = ((name, getattr(self, name)) for name in INPUT_NAMES)
        return tuple((name, value) for name, value in named if value is not None)


INPUT_NAMES: Final = tuple(
    entry.name for entry in dataclasses.fields(AttentionTensors) if str(entry.type).startswith("torch.Tensor")
)
"""Every tensor that an attention call may read; some are None in most cases."""

AXES: Final[dict[str, tuple[Literal["token", "head"], ...]]] = {
    "query": ("token", "head"),
    "new_keys": ("token", "head"),
    "new_values": ("token", "head"),
    "alibi_slopes": ("head",),
    "sinks": ("head",),
}
"""The first axes of the inputs that have a part for each token or head; each output knows its own axes."""


def materialise(case: AttentionCase, device: str = "cpu", stored_as: CacheFormat | None = None) -> AttentionTensors:
    """Return the tensors of a case, the same bits on every machine and device; the caches in the family's own format.

    In another format, ``stored_as``, they hold the same numbers, and as much padding and poison.
    """
    numbers, pages = numbers_of(case), page_map(case)
    key_cache, value_cache = _caches(case, stored_as or FAMILIES[case.family].cache, numbers, pages, device)
    starts = list(accumulate((s.query_len for s in case.sequences), initial=0))
    seq_lens = [s.seq_len for s in case.sequences]
    value_gaps = case.strides.new_value_token, case.strides.new_value_head
    return AttentionTensors(
        query=_query(case, numbers.queries, device),
        key_cache=key_cache,
        value_cache=value_cache,
        outputs=outputs_of(case, device),
        query_start_loc=_integers(starts, device),
        seq_lens=_integers(seq_lens, device),
        block_table=_block_table(case, pages, device),
        query_lens=tuple(s.query_len for s in case.sequences),
        context_lens=tuple(s.context_len for s in case.sequences),
        softmax_scale=float(np.float32(case.softmax_scale)),
        window=case.window,
        mask=case.mask,
        custom_mask=custom_mask_of(case, device),
        softcap=float(np.float32(case.softcap)),
        q_scale=_scale(case.scales.q, case.dtypes.q, device),
        k_scale=_scale(case.scales.k, case.dtypes.kv, device),
        v_scale=_scale(case.scales.v, case.dtypes.kv, device),
        out_scale=_scale(case.scales.out, case.dtypes.out, device),
        alibi_slopes=_slopes(case, device),
        qq_bias=_qq_bias(case, device),
        sinks=_sinks(case, device),
        new_keys=_new(case, numbers.keys, (0, 0), case.poison.keys, device),
        new_values=_new(case, numbers.values, value_gaps, case.poison.values, device),
        launch=case.launch,
        form=case.form,
        family=case.family,
        kv_dtype=TORCH_DTYPES[case.dtypes.kv],
        answers=case.answers,
        filter_by_query_len=case.filter_by_query_len,
        reads_packed=case.reads_packed,
        index_poison=table_poison(case.poison.table, pages.num_blocks),
        ragged_splits=case.ragged_splits,
        first_block=case.pages.first_block,
        stored_as=stored_as,
        lse=case.lse,
    )


def _out(case: AttentionCase, device: str) -> OutputTensor:
    """Return the attention output: rows of the tokens, then those of padding."""
    gaps, dtype = (case.strides.out_token, case.strides.out_head), case.dtypes.out
    poison = output_poison(dtype, case.poison.out)
    heads = case.heads.num_query_heads, case.heads.head_size_v
    memory = packed_memory(case, heads, dtype, poison, gaps, case.form.extra_output_rows)
    view = heads_view(memory, heads[0], gaps[1], heads[1])
    near = tensors_over(memory, (view,), TORCH_DTYPES[dtype], device)[0]
    answered = _answered_tokens(case, device)
    live = None if answered is None else answered[:, None, None]
    return OutputTensor(_far(case, near, {"out_token": 0, "out_head": 1}), poison, (slice(0, case.num_tokens),), live)


def _lse(case: AttentionCase, device: str) -> OutputTensor | None:
    """Return the log-sum-exp, with as many rows as the attention output and the padding of its heads."""
    if case.lse is None:
        return None
    by_tokens, poison = case.lse.order == "tokens", output_poison("float32", case.poison.out)
    rows = case.num_tokens + case.padded_tokens + case.form.extra_output_rows
    shape = (rows, case.heads.num_query_heads) if by_tokens else (case.heads.num_query_heads, rows)
    width = shape[1] + case.strides.out_head
    memory = poisoned((shape[0], width), np.uint32, poison)
    near = tensors_over(memory, (strided(memory, shape, (width, 1)),), torch.float32, device)[0]
    tensor = _far(case, near, {"lse_token": 1 - by_tokens, "lse_head": int(by_tokens)})
    answered, tokens = _answered_tokens(case, device), slice(0, case.num_tokens)
    if by_tokens:
        live = None if answered is None else answered[:, None]
        return OutputTensor(tensor, poison, (tokens,), live, ("token", "head"))
    live = None if answered is None else answered[None]
    return OutputTensor(tensor, poison, (slice(None), tokens), live, ("head", "token"))


def _answered_tokens(case: AttentionCase, device: str) -> torch.Tensor | None:
    """Return bool ``[num_tokens]``, whether the target writes the token's rows; None where it writes all."""
    if all(case.answers):
        return None
    lengths = torch.tensor([sequence.query_len for sequence in case.sequences])
    return torch.tensor(case.answers).repeat_interleave(lengths).to(device)


OUTPUTS: Final[dict[str, Callable[[AttentionCase, str], OutputTensor | None]]] = {"out": _out, "lse": _lse}
"""Every output of an attention call by its name: what returns it for a case on a device, None for a case without it."""


def outputs_of(case: AttentionCase, device: str) -> dict[str, OutputTensor]:
    """Return only the poisoned outputs of a case."""
    made = ((name, make(case, device)) for name, make in OUTPUTS.items())
    return {name: output for name, output in made if output is not None}


def taken(tensor: torch.Tensor, index: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return ``tensor[index]`` for any type, also for fp8, which torch cannot index on every device.

    On the host numpy does it: it copies whole rows where torch copies single elements.
    """
    if tensor.is_cpu:
        bits = bits_of(tensor).numpy()
        return torch.from_numpy(bits[tuple(each.numpy() for each in index)]).view(tensor.dtype)
    if is_fp8_dtype(tensor.dtype):
        return tensor.view(torch.uint8)[index].view(tensor.dtype)
    return tensor[index]


def digest_of(tensors: CallTensors) -> str:
    """Return 16 hexadecimal digits of all inputs' memory and the poisoned outputs, to detect changed generation."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in (*tensors.inputs(), *(("output", output.tensor) for output in tensors.outputs.values())):
        layout = f"{tuple(tensor.shape)}{tensor.stride()}{tensor.storage_offset()}"
        digest.update(f"{name}{tensor.dtype}{layout}".encode())
        digest.update(tensors.memory_of(tensor).cpu().numpy().tobytes())
    return digest.hexdigest()


def custom_mask_of(case: AttentionCase, device: str) -> torch.Tensor | None:
    """Return the bits of the custom mask of a case, None where it has another mask."""
    if not isinstance(case.mask, Custom):
        return None
    bits = np.concatenate([np.zeros(0, np.bool_), *(mask.ravel() for mask in custom_masks(case))])
    return tensor_of(bits.view(np.uint8), torch.bool, device, guard=1)


def _query(case: AttentionCase, queries: Floats, device: str) -> torch.Tensor:
    gaps = case.strides.q_token, case.strides.q_head
    query = _packed(case, rounded(queries, case.dtypes.q, case.scales.q), gaps, device)
    return _far(case, query, {"q_token": 0, "q_head": 1})


def _new(
    case: AttentionCase, array: Floats, more: tuple[int, int], poison: SlotPoison, device: str
) -> torch.Tensor | None:
    """Return the packed keys or values of the new tokens, None for families that do not take them.

    Tokens that no row may see hold poison.
    ``more`` padding of a token and of a head is added to that of the case.
    """
    if not FAMILIES[case.family].packs_new_keys:
        return None
    lengths = [(s.context_len, s.query_len) for s in case.sequences]  # of no decode of length 0: it packs no keys
    new = np.repeat(np.arange(2 * len(lengths)) % 2 == 1, [n for pair in lengths for n in pair])
    gaps = case.strides.new_token + more[0], case.strides.new_head + more[1]
    tokens = rounded(array[new], case.dtypes.q)
    if case.mask != CAUSAL:
        dead = slot_poison(case.dtypes.q, poison)
        tokens[~needed_of_batch(case, rows_of(case))[new]] = dead
    packed = _packed(case, tokens, gaps, device, case.form.extra_new_rows)
    return _far(case, packed, {"new_token": 0, "new_head": 1})


def _packed(case: AttentionCase, tokens: Bits, gaps: tuple[int, int], device: str, extra_rows: int = 0) -> torch.Tensor:
    """Return packed tokens ``[num_tokens + padded_tokens, heads, size]`` in q's type, NaN everywhere else."""
    dtype = case.dtypes.q
    poison = slot_poison(dtype, "nan")
    heads = tokens.shape[1], tokens.shape[2]
    memory = packed_memory(case, heads, dtype, poison, gaps, extra_rows)
    view = heads_view(memory, heads[0], gaps[1], heads[1])
    view[: case.num_tokens] = tokens
    return tensors_over(memory, (view,), TORCH_DTYPES[dtype], device)[0]


def _far(case: AttentionCase, near: torch.Tensor, axes: dict[FarAxis, int]) -> torch.Tensor:
    """Return the tensor with that of its axes far which the case says, if any."""
    for name in case.strides.far:
        if name in axes:
            axis = axes[name]
            return spread(near, axis, stride_of(near, axis, min(near.shape[axis], far_length(case, name))))
    return near


def _caches(
    case: AttentionCase, cache: CacheFormat, numbers: Numbers, pages: PageMap, device: str
) -> tuple[torch.Tensor, ...]:
    """Return both caches: slots of keys that some row may see hold numbers, everything else poison."""
    dtype = case.dtypes.kv
    poisons = slot_poison(dtype, case.poison.keys), slot_poison(dtype, case.poison.values)
    caches = cache_memory(case, cache, pages.num_blocks - pages.first_block, poisons)
    everything = bool(pages.held.all())
    blocks, offsets = np.divmod(pages.slots if everything else pages.slots[pages.held], case.pages.block_size)
    blocks = blocks - pages.first_block
    arrays, scales = (numbers.keys, numbers.values), (case.scales.k, case.scales.v)
    for slots, array, scale in zip(caches.slots, arrays, scales, strict=True):
        held = rounded(array if everything else array[pages.held], dtype, scale)
        slots[blocks, offsets] = held.reshape(-1, *slots.shape[2:])
    torch_dtype = torch.uint8 if case.uint8_cache else TORCH_DTYPES[dtype]
    page_strides = caches.layout.page_strides
    if cache.is_latent:
        view = _over(caches.memory[0], caches.views[:1], torch_dtype, device, page_strides[0], pages.first_block)[0]
        keys = _far(case, view, cache.far_axes[0])
        return keys, keys[..., : case.heads.head_size_v]
    if len(caches.memory) == 1:
        return _over(caches.memory[0], caches.views, torch_dtype, device, page_strides[0], pages.first_block)
    triples = zip(caches.memory, caches.views, page_strides, strict=True)
    near = (_over(block, (view,), torch_dtype, device, page, pages.first_block)[0] for block, view, page in triples)
    return tuple(_far(case, each, axes) for each, axes in zip(near, cache.far_axes, strict=True))


def _over(
    memory: Bits, views: tuple[Bits, ...], dtype: torch.dtype, device: str, page: int, first_block: int
) -> tuple[torch.Tensor, ...]:
    """Return caches over memory that holds the pages from ``first_block`` on, each of ``page`` elements."""
    if not first_block:
        return tensors_over(memory, views, dtype, device)
    return with_large_offsets(tensors_over(memory, views, dtype, "cpu"), first_block, page, device)


def _block_table(case: AttentionCase, pages: PageMap, device: str) -> torch.Tensor:
    sequences, width = pages.block_table.shape
    rows, garbage = sequences + case.form.extra_table_rows, table_poison(case.poison.table, pages.num_blocks)
    gap = case.strides.block_table
    memory = poisoned((rows, width + gap), np.int32, garbage)
    view = strided(memory, (rows, width), (width + gap, 1))
    view[:sequences] = pages.block_table
    return _far(case, tensors_over(memory, (view,), torch.int32, device)[0], {"block_table": 0})


def _integers(numbers: list[int], device: str) -> torch.Tensor:
    return tensor_of(np.array(numbers, np.int32), torch.int32, device, guard=2**31 - 1)


def _floats(numbers: Floats, device: str) -> torch.Tensor:
    return tensor_of(numbers.view(np.uint32), torch.float32, device, guard=slot_poison("float32", "nan"))


def _scale(scale: float, dtype: DTypeName, device: str) -> torch.Tensor | None:
    return _floats(np.array([scale], np.float32), device) if is_fp8(dtype) else None


def _slopes(case: AttentionCase, device: str) -> torch.Tensor | None:
    if case.alibi is None:
        return None
    return _bias_vector(bias_bits(alibi_slopes(case.alibi, case), case.alibi.dtype), case.alibi.dtype, device)


def _qq_bias(case: AttentionCase, device: str) -> torch.Tensor | None:
    if case.qq_bias is None:
        return None
    recipe = case.qq_bias
    bits = bias_bits(qq_bias(recipe, case), recipe.dtype)
    live, columns = bits.shape
    memory, view = _bias_memory(recipe, (live + recipe.extra_rows, columns), bits.dtype)
    view[:live] = bits
    bias = tensors_over(memory, (view,), BIAS_DTYPES[recipe.dtype], device)[0]
    return _far(case, bias, {"bias_row": 0, "bias_column": 1})


def _bias_memory(recipe: QQBiasRecipe, shape: tuple[int, int], dtype: npt.DTypeLike) -> tuple[Bits, Bits]:
    """Return poisoned memory for a query-query bias, and a view of it with this shape."""
    rows, columns = shape
    by_columns = recipe.order == "columns"
    outer, inner = (columns, rows) if by_columns else (rows, columns)
    outer = 1 if recipe.order == "one_row" else outer
    inner = 1 if recipe.order == "one_column" else inner
    width = (inner + recipe.row_padding) * recipe.step
    memory = poisoned((outer, width), dtype, bias_poison(recipe.dtype))
    strides = 0 if recipe.order == "one_row" else width, 0 if recipe.order == "one_column" else recipe.step
    return memory, strided(memory, shape, strides[::-1] if by_columns else strides)


def _sinks(case: AttentionCase, device: str) -> torch.Tensor | None:
    if case.sinks is None:
        return None
    dtype, numbers = case.sinks.dtype, sinks(case.sinks, case)
    bits = bias_bits(numbers, dtype) if dtype == "float64" else rounded(numbers, dtype)
    return _bias_vector(bits, dtype, device)


def _bias_vector(bits: Bits, dtype: BiasDType, device: str) -> torch.Tensor:
    return tensor_of(bits, BIAS_DTYPES[dtype], device, guard=bias_poison(dtype))


Array: TypeAlias = np.typing.NDArray[Any]


class Store:
    """The keys and values of a batch, by sequence and position. Only it knows pages, layouts, scales and packed tokens.

    Indices come and go through numpy, whose calls cost least for a few numbers.
    """

    def __init__(self, tensors: AttentionTensors) -> None:
        self._tensors = tensors
        self._pages = tensors.block_table.cpu().numpy()
        self._starts = np.array([0, *accumulate(tensors.query_lens)])
        self._contexts = np.array(tensors.context_lens)

    def gather(self, sequence: Array, position: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values ``[B, num_kv_heads, K, head_size]``, float64, as a kernel computes with them.

        ``position`` is ``[B, K]``, and ``sequence`` broadcasts to it. Stored fp8 is dequantised unless q is fp8 too.
        """
        tensors = self._tensors
        pages, slots = np.divmod(position, tensors.block_size)
        blocks = self._pages[sequence, pages].astype(np.int64)
        keys, values = self._cached(self._placed(blocks), self._placed(slots))
        if tensors.new_keys is not None and tensors.new_values is not None:
            new = position - self._contexts[sequence]
            packed = np.array(tensors.reads_packed)[sequence] & (new >= 0)
            tokens = self._placed((self._starts[sequence] + new)[packed])
            places = tuple(map(self._placed, packed.nonzero()))
            _put(keys, places, tensors.new_keys[tokens])
            _put(values, places, tensors.new_values[tokens])
        return keys, values

    def _placed(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self._tensors.query.device)

    def _cached(self, block: torch.Tensor, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tensors, dtype = self._tensors, self._tensors.query.dtype
        keys, values = (
            stored.transpose(1, 2).contiguous()
            for stored in (tensors.keys_at(block, slot), tensors.values_at(block, slot))
        )
        return _dequantised(keys, tensors.k_scale, dtype), _dequantised(values, tensors.v_scale, dtype)


def _put(cached: torch.Tensor, places: tuple[torch.Tensor, ...], new: torch.Tensor) -> None:
    """Copy packed keys or values to their places ``[B, K]``."""
    cached.transpose(1, 2)[places] = new.double()


def _dequantised(stored: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 values: fp8 times its scale, rounded to the type of q; fp8 as stored if q is fp8 too."""
    if not is_fp8_dtype(stored.dtype) or is_fp8_dtype(dtype):
        return stored.double()
    scaled = stored.float()
    if scale is not None:
        scaled *= scale
    return scaled.to(dtype).double()
