"""Values: what the argument of each role is in a call, in the form in which the case passes it.

A problem has the tensors of a case as the binding passes them, caches in the target's layout and indices in its form.

Copies are made for one call, between guards of poison that tell whether the target changed them.

A contract may allow several forms; only targets that declare ``call_forms`` get others than the usual one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.binding.binding import AXES, Binding, Layout, format_of, groups_of, python_value
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.recipes import Chunks, Custom, Lookahead, TopLeft
from fuzz_attn.inputs.storage import GUARD_BYTES, bits_of, in_one_row, is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors

Integers: TypeAlias = npt.NDArray[np.int64]

_INDEX_DTYPES: Final = {"int32": torch.int32, "int64": torch.int64}
_NO_INDEX: Final = 2**31 - 1


@dataclass(frozen=True)
class Problem:
    """The inputs of one call. ``copies`` are the tensors that were made for it, by the names of what they hold."""

    tensors: AttentionTensors
    binding: Binding
    copies: list[Copy] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.tensors.query.device

    @cached_property
    def key_cache(self) -> torch.Tensor:
        """The key cache in the target's layout."""
        return self._cache("key_cache")

    @cached_property
    def value_cache(self) -> torch.Tensor:
        """The value cache in the target's layout."""
        return self._cache("value_cache")

    def off(self, role: str, otherwise: object = None) -> object:
        """Return the argument of a role whose feature the case does not have."""
        return python_value(self.binding.off[role]) if role in self.binding.off else otherwise

    def integers(self, name: str, numbers: list[int] | Integers, guard: int = _NO_INDEX) -> torch.Tensor:
        """Return integers of the type that the target takes, between guards."""
        dtype = _INDEX_DTYPES[self.binding.index_dtype]
        array = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64)).to(self.device, dtype)
        return self.kept(name, array, guard)

    def kept(self, name: str, values: torch.Tensor, guard: float | None = None) -> torch.Tensor:
        """Return a copy of a tensor between guards, watched for changes."""
        copy = guarded(name, values, guard)
        self.copies.append(copy)
        return copy.tensor

    @cached_property
    def key_lens(self) -> list[int]:
        """For each sequence, how many keys an index list counts: those of the context where new keys are packed."""
        tensors = self.tensors
        packed = FAMILIES[tensors.family].packs_new_keys
        pairs = zip(tensors.query_lens, tensors.context_lens, strict=True)
        return [context if packed else query + context for query, context in pairs]

    def slots_of(self, sequence: int) -> Integers:
        """Return the slot of each key that the index list of a sequence counts."""
        positions, size = np.arange(self.key_lens[sequence], dtype=np.int64), self.tensors.block_size
        slots: Integers = self._pages[sequence][positions // size] * size + positions % size
        return slots

    @cached_property
    def _pages(self) -> Integers:
        return self.tensors.block_table.cpu().numpy().astype(np.int64)

    def _cache(self, name: str) -> torch.Tensor:
        tensors, layout = self.tensors, self.binding.cache_layout
        own: torch.Tensor = getattr(tensors, name)
        if format_of(layout, tensors.family) != tensors.cache_format:
            assert layout is not None
            copy = cache_copy(name, tensors, layout)
            self.copies.append(copy)
            own = copy.tensor
        elif tensors.cache_format.in_one_row:
            own = in_one_row(own)
        as_bytes = self.binding.fp8 == "bytes" and is_fp8_dtype(own.dtype)
        return own.view(torch.uint8) if as_bytes else own


_POISON: Final = 0xFF
"""The value of each byte of a guard: NaN in every floating-point type, -1 in every integer."""


@dataclass(frozen=True)
class Copy:
    """A tensor made for one call. ``memory`` is all of its memory, guards included, ``before`` what that held."""

    name: str
    tensor: torch.Tensor
    memory: torch.Tensor
    before: torch.Tensor

    @property
    def is_changed(self) -> bool:
        """Whether the call has changed the memory."""
        return not self.memory.equal(self.before)


def guarded(name: str, values: torch.Tensor, guard: float | None = None) -> Copy:
    """Return a dense copy of a tensor between guards, which hold ``guard`` or else bytes that are NaN."""
    memory = guarded_memory(values.numel() * values.element_size(), values.device)
    if guard is not None:
        memory.view(values.dtype).fill_(guard)
    tensor = _inside(memory, tuple(values.shape), values.dtype)
    bits_of(tensor).copy_(bits_of(values))
    return Copy(name, tensor, memory, memory.clone())


def cache_copy(name: str, tensors: AttentionTensors, layout: Layout) -> Copy:
    """Return one of the caches in another layout, poison in unused slots included."""
    slots, pattern = (tensors.key_slots, layout.keys) if name == "key_cache" else (tensors.value_slots, layout.values)
    rows = bits_of(slots).flatten(3)
    sizes = dict(zip(AXES, (*rows.shape[:3], *_pieces(tensors, rows.shape[3])), strict=True))
    groups = groups_of(pattern)
    axes = [AXES.index(axis) for group in groups for axis in group]
    ordered = rows.reshape(tuple(sizes.values())).permute(axes)
    shape = tuple(math.prod(sizes[axis] for axis in group) for group in groups)
    return guarded(name, ordered.reshape(shape).view(slots.dtype))


def _pieces(tensors: AttentionTensors, head_size: int) -> tuple[int, int]:
    """Return how many pieces of 16 bytes a key has, and their elements; one piece where that does not divide it."""
    x = max(1, 16 // tensors.key_cache.element_size())
    return (head_size // x, x) if head_size % x == 0 else (1, head_size)


def guarded_memory(size: int, device: torch.device) -> torch.Tensor:
    """Return new memory for ``size`` bytes between guards, all of it full of their bytes."""
    whole = -(-size // GUARD_BYTES) * GUARD_BYTES + 2 * GUARD_BYTES
    return torch.full((whole,), _POISON, dtype=torch.uint8, device=device)


def _inside(memory: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return memory.view(dtype).as_strided(shape, strides, GUARD_BYTES // dtype.itemsize)


DEFAULT_SEGMENTS: Final = 4
"""Segments of a launch of the 3D kernel whose case names no number."""

_NO_REQUEST: Final = 2
"""Rows of a request table that belong to no sequence of the batch."""


def new_keys(problem: Problem) -> torch.Tensor:
    """Return the packed keys of the new tokens; NaN where the target must read every key from the cache."""
    return _packed(problem, problem.tensors.new_keys, problem.tensors.query.shape[2])


def new_values(problem: Problem) -> torch.Tensor:
    """Return the packed values of the new tokens; NaN where the target must read every value from the cache."""
    return _packed(problem, problem.tensors.new_values, problem.tensors.value_slots.shape[3])


def _packed(problem: Problem, packed: torch.Tensor | None, size: int) -> torch.Tensor:
    if packed is not None:
        return packed
    query = problem.tensors.query
    shape = (query.shape[0], problem.tensors.num_kv_heads, size)
    return torch.full(shape, torch.nan, dtype=torch.float32, device=query.device).to(query.dtype)


def lse(problem: Problem) -> object:
    """Return the log-sum-exp; where the case has none what "off" is, or scratch if the parameter has no default."""
    output = problem.tensors.outputs.get("lse")
    if output is not None:
        return output.tensor
    if "lse" in problem.binding.off:
        return problem.off("lse")
    return torch.empty(problem.tensors.output.shape[:2], dtype=torch.float32, device=problem.device)


def query_type(problem: Problem) -> object:
    """Return the type of the queries, as Triton's language names it."""
    import triton.language  # noqa: PLC0415 - the backend prepares Triton first

    return getattr(triton.language, str(problem.tensors.query.dtype).removeprefix("torch."))


def kv_indptr(problem: Problem) -> torch.Tensor:
    """Return prefix sums of the numbers of keys in ``kv_indices``."""
    return problem.integers("kv_indptr", np.cumsum([0, *problem.key_lens], dtype=np.int64))


def kv_indices(problem: Problem) -> torch.Tensor:
    """Return the slot of each key, the sequences one after the other."""
    slots = [problem.slots_of(sequence) for sequence in range(len(problem.key_lens))]
    return problem.integers("kv_indices", np.concatenate([np.zeros(0, np.int64), *slots]), problem.tensors.index_poison)


def slot_table(problem: Problem) -> torch.Tensor:
    """Return the slots of each sequence's keys ``[rows, max_keys]``; the rest is no valid slot.

    The rows are in another order than the sequences where the target is told which row each sequence has.
    """
    rows = request_rows(problem)
    shape = (max(rows, default=-1) + 1, max(problem.key_lens, default=0))
    table = np.full(shape, np.iinfo(np.int32).max, np.int64)
    for sequence, row in enumerate(rows):
        table[row, : problem.key_lens[sequence]] = problem.slots_of(sequence)
    return problem.integers("slot_table", table)


def request_ids(problem: Problem) -> torch.Tensor:
    """Return the row of ``slot_table`` of each sequence."""
    return problem.integers("request_ids", request_rows(problem))


def request_rows(problem: Problem) -> list[int]:
    """Return which row of the slot table each sequence has."""
    sequences = range(len(problem.key_lens))
    if "request_ids" not in problem.binding.parameter_of:
        return list(sequences)
    return [len(sequences) - 1 - sequence + _NO_REQUEST for sequence in sequences]


def query_lens(problem: Problem) -> torch.Tensor:
    """Return the query tokens of each sequence."""
    return problem.integers("query_lens", list(problem.tensors.query_lens))


def context_lens(problem: Problem) -> torch.Tensor:
    """Return the keys of each sequence that are no new tokens."""
    return problem.integers("context_lens", list(problem.tensors.context_lens))


def key_start_loc(problem: Problem) -> torch.Tensor:
    """Return prefix sums of the lengths of all sequences, new tokens included; of packed keys with unused rows."""
    tensors = problem.tensors
    lengths = [q + c for q, c in zip(tensors.query_lens, tensors.context_lens, strict=True)]
    if tensors.cache_format.is_packed:
        lengths = [-(-length // tensors.block_size) * tensors.block_size for length in lengths]
    return problem.integers("key_start_loc", np.cumsum([0, *lengths], dtype=np.int64))


def seq_lens(problem: Problem) -> object:
    """Return the length of each sequence; off where packed keys leave no row unused."""
    tensors = problem.tensors
    full = tensors.cache_format.is_packed and tensors.block_size == 1
    return problem.off("seq_lens", tensors.seq_lens) if full else tensors.seq_lens


def block_size(problem: Problem) -> int:
    """Return the slots of a page; 1 where the cache is a list of slots."""
    layout = problem.binding.cache_layout
    return problem.tensors.block_size if layout is None or layout.pages else 1


def causal(problem: Problem) -> bool:
    """Return whether keys behind a row's own are masked, beside what a custom mask hides."""
    mask = problem.tensors.mask
    return not (problem.tensors.visibility.sees_all_behind or isinstance(mask, Lookahead))


def top_left(problem: Problem) -> bool:
    """Return whether the causal mask is aligned to the top left."""
    return isinstance(problem.tensors.mask, TopLeft)


def chunk_size(problem: Problem) -> int:
    """Return the keys of a chunk, 0 for none."""
    return problem.tensors.mask.size if isinstance(problem.tensors.mask, Chunks) else 0


def replacing_mask(problem: Problem) -> object:
    """Return the bits of a custom mask; where it is used together with the causal one, without what that hides."""
    tensors, mask = problem.tensors, problem.tensors.mask
    if tensors.custom_mask is None or not isinstance(mask, Custom):
        return problem.off("replacing_mask")
    if not mask.causal:
        return tensors.custom_mask
    seen = [np.zeros(0, np.bool_)]
    for sequence, context in enumerate(tensors.context_lens):
        bits = tensors.mask_of(sequence)
        assert bits is not None
        seen.append(np.tril(bits, context).ravel())
    return problem.kept("replacing_mask", torch.from_numpy(np.concatenate(seen)).to(problem.device))


def mask_indptr(problem: Problem) -> object:
    """Return prefix sums of the bits that each sequence has in a custom mask."""
    if problem.tensors.custom_mask is None:
        return problem.off("mask_indptr")
    return problem.integers("mask_indptr", np.cumsum([0, *problem.tensors.mask_sizes], dtype=np.int64))


def window(problem: Problem) -> object:
    """Return the window in the target's spelling."""
    tensors, pair = problem.tensors, problem.binding.window == "pair"
    size = tensors.window
    if pair and not causal(problem):
        return size - 1, window_right(problem)
    if tensors.form.window and (pair or not size):
        return window_size(tensors) if pair else no_window(tensors)
    if not size:
        return problem.off("window", (-1, -1) if pair else None)
    return {"pair": (size - 1, 0), "keys": size, "left": size - 1}[problem.binding.window or "keys"]


def window_left(problem: Problem) -> object:
    """Return how many keys a row sees to the left of its own."""
    size = problem.tensors.window
    return size - 1 if size else problem.off("window_left", -1)


def window_right(problem: Problem) -> object:
    """Return how many keys a row sees to the right of its own."""
    mask = problem.tensors.mask
    if isinstance(mask, Lookahead):
        return mask.keys
    return 0 if problem.tensors.window and causal(problem) else problem.off("window_right", -1)


def softcap(problem: Problem) -> object:
    """Return the soft cap."""
    return problem.tensors.softcap or problem.off("softcap", 0.0)


def q_scale(problem: Problem) -> object:
    """Return the scale of q; off where it is 1, because most published versions refuse to be given one."""
    scale = problem.tensors.q_scale
    return _scale(problem, "q_scale", None if scale is None or float(scale) == 1.0 else scale)


def k_scale(problem: Problem) -> object:
    """Return the scale of K."""
    return _scale(problem, "k_scale", problem.tensors.k_scale)


def v_scale(problem: Problem) -> object:
    """Return the scale of V."""
    return _scale(problem, "v_scale", problem.tensors.v_scale)


def out_scale(problem: Problem) -> object:
    """Return the scale of the output, always as a tensor."""
    scale = problem.tensors.out_scale
    return problem.off("out_scale") if scale is None else scale


def _scale(problem: Problem, role: str, scale: torch.Tensor | None) -> object:
    """Return a scale in the target's form."""
    binding = problem.binding
    if scale is None:
        off = problem.off(role)
        if not isinstance(off, int | float):
            return off
        return _formed(problem, role, torch.full((1,), float(off), device=problem.device))
    if binding.scale_direction == "divide":
        scale = problem.kept(role, 1.0 / scale)
    return _formed(problem, role, scale)


def _formed(problem: Problem, role: str, scale: torch.Tensor) -> object:
    match problem.binding.scales:
        case "float":
            return float(scale)
        case "per_head":
            return problem.kept(role, scale.float().repeat(problem.tensors.num_kv_heads))
    return scale_in_form(problem.tensors, scale)


def kv_cache_dtype(problem: Problem) -> str:
    """Return the name of the cache's type in serving systems."""
    return cache_name(problem.tensors, as_bytes=problem.key_cache.dtype == torch.uint8)


def kv_quant_mode(problem: Problem) -> int:
    """Return 1 for a cache with one scale for each tensor, 0 for one without scales."""
    return int(is_fp8_dtype(problem.tensors.key_cache.dtype))


def num_segments(problem: Problem) -> int | None:
    """Return the hint of this project's launcher: None for its own choice, 0 for the 2D kernel."""
    launch = problem.tensors.launch
    return {"auto": None, "2d": 0, "3d": launch.num_segments or DEFAULT_SEGMENTS}[launch.path]


def segment_threshold(problem: Problem) -> int | None:
    """Return the largest batch of the 3D kernel; None for the 2D kernel."""
    return len(problem.tensors.query_lens) if problem.tensors.launch.path == "3d" else None


def seq_splits(problem: Problem) -> torch.Tensor | None:
    """Return the splits of each sequence: the most for all, or with ragged splits ever one fewer, down to 1.

    None leaves the number to the launcher.
    """
    most, tensors = max_splits(problem), problem.tensors
    if most is None:
        return None
    fewer = [sequence % most * tensors.ragged_splits for sequence in range(len(tensors.query_lens))]
    return problem.integers("seq_splits", [most - each for each in fewer])


def max_splits(problem: Problem) -> int | None:
    """Return the most splits of a sequence; None for the launcher's own choice."""
    return scratch_segments(problem) if problem.tensors.launch.path != "2d" else 1


def split_outputs(problem: Problem) -> torch.Tensor | None:
    """Return scratch for the output of each split."""
    return _split_scratch(problem, problem.tensors.value_slots.shape[3])


def split_scalars(problem: Problem) -> torch.Tensor | None:
    """Return scratch for one number of each split."""
    return _split_scratch(problem)


def _split_scratch(problem: Problem, *columns: int) -> torch.Tensor | None:
    """Return uninitialised float32 scratch ``[num_seqs, num_query_heads, splits, *columns]``."""
    splits, tensors = max_splits(problem), problem.tensors
    if splits is None:
        return None
    shape = len(tensors.query_lens), tensors.query.shape[1], splits, *columns
    return torch.empty(shape, dtype=torch.float32, device=problem.device)


def scratch_segments(problem: Problem) -> int | None:
    """Return the number of segments that the scratch has room for, None for the 2D kernel."""
    launch = problem.tensors.launch
    return launch.num_segments or DEFAULT_SEGMENTS if launch.path == "3d" else None


def segment_outputs(problem: Problem) -> torch.Tensor | None:
    """Return scratch for the output of each segment."""
    return _scratch(problem, 1 << (problem.tensors.value_slots.shape[3] - 1).bit_length())


def segment_scalars(problem: Problem) -> torch.Tensor | None:
    """Return scratch for one number of each segment."""
    return _scratch(problem)


def _scratch(problem: Problem, *columns: int) -> torch.Tensor | None:
    """Return uninitialised float32 scratch ``[num_tokens, num_query_heads, segments, *columns]`` of the 3D kernel."""
    segments = scratch_segments(problem)
    if segments is None:
        return None
    rows, heads, _ = problem.tensors.query.shape
    return torch.empty((rows, heads, segments, *columns), dtype=torch.float32, device=problem.device)


def has_default_scale(tensors: AttentionTensors) -> bool:
    """Return whether the softmax scale is the one that launchers derive from the head size."""
    return tensors.softmax_scale == float(tensors.query.shape[2] ** -0.5)


_NAMES: Final[dict[torch.dtype, tuple[str, str, str]]] = {
    torch.float8_e4m3fn: ("fp8_e4m3", "fp8", "auto"),
    torch.float8_e5m2: ("fp8_e5m2", "fp8_e5m2", "auto"),
}
_NAMES_OF_BYTES: Final[dict[torch.dtype, tuple[str, str, str]]] = {
    torch.float8_e4m3fn: ("fp8", "fp8_e4m3", "fp8"),
    torch.float8_e5m2: ("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"),
}


def scale_in_form(tensors: AttentionTensors, scale: torch.Tensor) -> torch.Tensor | None:
    """Return a scale of q, k or v in the form in which the case passes it."""
    form = tensors.form.scales
    if form == "omitted" and float(scale) == 1.0:
        return None
    if form == "scalar":
        return scale.reshape(())
    return scale.expand(max(1, len(tensors.query_lens)), tensors.num_kv_heads) if form == "expanded" else scale


def window_size(tensors: AttentionTensors) -> tuple[int, int]:
    """Return how many keys a row sees to the left and to the right of its own, -1 for no limit.

    New tokens never see a later one, so the right side may be 0 or -1 with and without a window.
    """
    usual, other = (0, -1) if tensors.window else (-1, 0)
    return tensors.window - 1, usual if tensors.form.window % 2 == 0 else other


def no_window(tensors: AttentionTensors) -> int | None:
    """Return the number of keys that means no window; the usual form is None."""
    return (None, 0, -1)[tensors.form.window]


def cache_name(tensors: AttentionTensors, *, as_bytes: bool) -> str:
    """Return one of the names of the cache's type in serving systems; bytes must be named.

    The usual name of e4m3 as bytes is the short one, "fp8".
    """
    names = _NAMES_OF_BYTES if as_bytes else _NAMES
    return names[tensors.kv_dtype][tensors.form.cache_name] if tensors.kv_dtype in names else "auto"


def query_starts(tensors: AttentionTensors) -> torch.Tensor | None:
    """Return the starts of the queries; paged decode needs them only to skip sequences."""
    needed = tensors.form.query_starts or tensors.filter_by_query_len or FAMILIES[tensors.family].needs_query_starts
    return tensors.query_start_loc if needed else None
