"""Write experiment: the tensors of a cache write, the callable that gets them, its launches, and the reference.

One relation writes, then reads back: an attention kernel of this project reads what a cache write stored.

A cast to a wider type or to the same one is exact. A cast to a narrower one rounds to nearest, ties to even: it has one
right result. Where a number is beyond the largest of a float16 cache, any element may be there.

For an fp8 cache a number ``x`` is divided by the scale ``s`` in float32, clamped to the finite range and rounded. The
quotient loses at most 4 units of itself: as much as a product with a rounded reciprocal, or as the quotient of a GPU.
A quotient below the normal range of float32 may be flushed. So the last rounding has one or, near the middle between
two fp8 numbers, two right results. No term is a tolerance.

With a scale for each token and head, the scale is the largest magnitude of the row divided by the limit of the cache,
so it loses at most as much as a quotient. A quotient with it loses that much once more. An int8 cache holds the nearest
integer, of which a sum with 0.5 may lose one unit more. Rows with a scale below ``LEAST_SCALE`` are not judged: kernels
keep their scales above some small number, each above its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from fuzz_attn.binding.binding import AXES, LAYOUTS, Binding, Layout, groups_of
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs import tensors as attention_tensors
from fuzz_attn.inputs.output_tensors import CallTensors, OutputTensor
from fuzz_attn.inputs.random_bits import Integers, Stream
from fuzz_attn.inputs.storage import (
    TORCH_DTYPES,
    bits_dtype,
    bits_of,
    is_fp8_dtype,
    output_poison,
    poisoned,
    rounded,
    slot_poison,
    spread,
    stride_of,
    strided,
    tensor_of,
    tensors_over,
)
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.inputs.transforms import numbers_like
from fuzz_attn.operations.cache_write.write_case import (
    NAME,
    NAMES,
    NEEDED,
    OWN_SCALES,
    QUERY_HEADS,
    ROLES,
    SCALE_CACHES,
    SCALES,
    CacheType,
    StoredType,
    WriteCase,
    WriteDomain,
)
from fuzz_attn.operations.small_target import (
    Forms,
    Roles,
    SmallExperiment,
    SmallTarget,
    found,
    limited,
    optional,
    with_far_axis,
)
from fuzz_attn.oracle.error_bound import stored_bound
from fuzz_attn.oracle.reference import Expected, Reference, attend
from fuzz_attn.oracle.roundings import FLUSHED, UNIT
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, second_launch
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.built_in import built_in
from fuzz_attn.targets.target import Called

_KEYS, _VALUES, _SLOTS, _SKIPPED, _ZEROS = 65, 66, 67, 68, 69
"""The streams of random numbers."""
NOWHERE: Final = -1
"""The slot of a skipped token."""
_NAMED: Final[dict[StoredType, tuple[str, int]]] = {
    "float8_e4m3fn": ("fp8_e4m3", 1),
    "float8_e5m2": ("fp8_e5m2", 1),
    "int8_token_head": ("int8_per_token_head", 2),
    "float8_e4m3fn_token_head": ("fp8_per_token_head", 3),
}
"""What launchers call a kind of caches: ``kv_cache_dtype`` and ``kv_quant_mode``."""
_UNUSED_INT8: Final = 0x80
"""The bits of -128, which no correct write stores: scales make 127 the largest."""
_BEYOND: Final = 2**62 + 1
"""What lies around the slots: no kernel that reads it finds a slot there."""


@dataclass(frozen=True)
class WriteTensors(CallTensors):
    """The new keys and values, their slots, the scales, and the caches as the outputs of the write.

    ``key`` and ``value`` are ``[num_tokens or more, num_heads, head_size]``, ``slot_mapping`` is int64
    ``[num_tokens]``, ``k_scale`` and ``v_scale`` are float32 ``[1]``. ``key_cache`` and ``value_cache`` are
    ``[num_pages, page_size, num_heads, head_size]``; the region of each holds a slot for every token, of which those of
    skipped tokens are not live. With a scale for each token and head, ``k_scale_cache`` and ``v_scale_cache`` are
    outputs too, float32 ``[num_pages, page_size, num_heads]``. To the judge all tokens are one sequence.
    """

    key: torch.Tensor
    value: torch.Tensor
    slot_mapping: torch.Tensor
    k_scale: torch.Tensor
    v_scale: torch.Tensor
    outputs: dict[str, OutputTensor]
    kv_cache_dtype: str = "auto"
    kv_quant_mode: int = 0
    query_lens: tuple[int, ...] = (1,)
    context_lens: tuple[int, ...] = (0,)
    visibility: Visibility = field(default_factory=Visibility)
    launch: LaunchHints = field(default_factory=LaunchHints)

    def inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and tensor of everything that a write must not change."""
        yield "key", self.key
        yield "value", self.value
        yield "slot_mapping", self.slot_mapping
        yield "k_scale", self.k_scale
        yield "v_scale", self.v_scale


def slots_of(case: WriteCase, other: int = 0) -> Integers:
    """Return a slot for each token, also for skipped ones, no slot twice; ``other`` slots than those of 0."""
    count = case.num_pages * case.page_size
    if not case.shuffled and not other:
        return np.arange(case.num_tokens)
    slots: Integers = Stream(case.seed + other, _SLOTS).permutation(count)[: case.num_tokens]
    return slots


def skipped_of(case: WriteCase) -> npt.NDArray[np.bool_]:
    """Return which tokens go nowhere, ``[num_tokens]``."""
    skipped = np.zeros(case.num_tokens, np.bool_)
    if case.skipped:
        skipped |= Stream(case.seed, _SKIPPED).below(3, case.num_tokens) == 0
        skipped[0] = True
    return skipped


def materialise(
    case: WriteCase, device: str = "cpu", *, reverse: bool = False, variant: int = 0, other: int = 0
) -> WriteTensors:
    """Return the tensors of a case, on demand with the tokens in the reverse order or in ``other`` slots.

    With ``variant`` 1 the caches hold the other poison.
    """
    slots, skipped = slots_of(case, other), skipped_of(case)
    keys, values = _numbers(case, _KEYS), _numbers(case, _VALUES)
    if reverse:
        slots, skipped = slots[::-1].copy(), skipped[::-1].copy()
        rows = slice(0, case.num_tokens)
        keys[rows], values[rows] = keys[rows][::-1].copy(), values[rows][::-1].copy()
    key, value = _fused(case, keys, values, device) if case.fused else _apart(case, keys, values, device)
    name, mode = _NAMED.get(case.stored_as, ("auto", 0))
    mapping = np.where(skipped, NOWHERE, slots)
    return WriteTensors(
        key=key,
        value=value,
        slot_mapping=tensor_of(mapping, torch.int64, device, guard=_BEYOND),
        k_scale=_scale(case.k_scale, device),
        v_scale=_scale(case.v_scale, device),
        outputs=_caches(case, slots, skipped, device, variant),
        kv_cache_dtype=name,
        kv_quant_mode=mode,
        query_lens=(case.num_tokens,),
    )


def _numbers(case: WriteCase, stream: int) -> npt.NDArray[Any]:
    """Return the bits of new keys or values, ``[num_tokens and padded rows, num_heads, head_size]``."""
    shape = case.num_tokens + case.padded_tokens, case.num_heads, case.head_size
    normals = Stream(case.seed, stream).normals(*shape)
    if case.zero_rows:
        zeros = Stream(case.seed ^ stream, _ZEROS).below(4, *shape[:2]) == 0
        zeros[0, 0] = True
        normals[zeros] = 0.0
    return rounded(np.float32(case.magnitude) * normals, case.dtype)


def _apart(
    case: WriteCase, keys: npt.NDArray[Any], values: npt.NDArray[Any], device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    memories = [poisoned(bits.shape, bits.dtype, slot_poison(case.dtype, "nan")) for bits in (keys, values)]
    for memory, bits in zip(memories, (keys, values), strict=True):
        memory[...] = bits
    key, value = (tensors_over(memory, (memory,), TORCH_DTYPES[case.dtype], device)[0] for memory in memories)
    axes = ("token", "head")
    return with_far_axis(case, key, "key", axes), with_far_axis(case, value, "value", axes)


def _fused(
    case: WriteCase, keys: npt.NDArray[Any], values: npt.NDArray[Any], device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values as columns of one tensor, behind those of queries."""
    rows, heads, size = keys.shape
    memory = poisoned((rows, QUERY_HEADS + 2 * heads, size), keys.dtype, slot_poison(case.dtype, "nan"))
    strides = [stride * keys.itemsize for stride in (memory.shape[1] * size, size, 1)]
    starts = [first * size * keys.itemsize for first in (QUERY_HEADS, QUERY_HEADS + heads)]
    views = [np.ndarray(keys.shape, keys.dtype, memory, start, strides) for start in starts]
    views[0][...], views[1][...] = keys, values
    key, value = tensors_over(memory, tuple(views), TORCH_DTYPES[case.dtype], device)
    return key, value


def _scale(scale: float, device: str) -> torch.Tensor:
    bits = np.array([scale], np.float32).view(np.uint32)
    return tensor_of(bits, torch.float32, device, guard=slot_poison("float32", "nan"))


def _caches(
    case: WriteCase, slots: Integers, skipped: npt.NDArray[np.bool_], device: str, variant: int
) -> dict[str, OutputTensor]:
    """Return the poisoned caches by their names."""
    pages, places = np.divmod(slots, case.page_size)
    region = tuple(torch.from_numpy(each).to(device) for each in (pages, places))
    live = torch.from_numpy(~skipped)[:, None, None].to(device) if skipped.any() else None
    gaps = {"key_cache": case.head_gap, "value_cache": case.head_gap + case.value_gap}
    found = {}
    for (name, gap), scales in zip(gaps.items(), SCALE_CACHES, strict=True):
        poison = _UNUSED_INT8 if case.cache_dtype == "int8" else output_poison(case.cache_dtype, variant)
        width = case.head_size + gap
        inner = (width, case.page_size * width) if case.heads_first else (case.num_heads * width, width)
        strides = (case.page_size * case.num_heads * width, *inner, 1)
        tensor = _cache(case, (case.head_size,), strides, (case.cache_dtype, poison), device)
        found[name] = OutputTensor(tensor, poison, region, live)
        if case.per_token_head:
            found[scales] = _scales(case, gap, region, live, output_poison("float32", variant), device)
    return found


def _scales(
    case: WriteCase,
    gap: int,
    region: tuple[torch.Tensor, ...],
    live: torch.Tensor | None,
    poison: int,
    device: str,
) -> OutputTensor:
    """Return poisoned scales of each token and head, with ``gap`` elements behind those of a place, or of a head."""
    width = (case.page_size if case.heads_first else case.num_heads) + gap
    rows = case.num_heads if case.heads_first else case.page_size
    strides = (rows * width, *((1, width) if case.heads_first else (width, 1)))
    tensor = _cache(case, (), strides, ("float32", poison), device)
    return OutputTensor(tensor, poison, region, None if live is None else live[..., 0], ("token", "head"))


def _cache(
    case: WriteCase, last: tuple[int, ...], strides: tuple[int, ...], kind: tuple[CacheType, int], device: str
) -> torch.Tensor:
    """Return a cache ``[num_pages, page_size, num_heads, *last]`` with these strides, of a type and a poison."""
    dtype, poison = kind
    shape = case.num_pages, case.page_size, case.num_heads, *last
    memory = poisoned((shape[0] * strides[0],), np.uint8 if dtype == "int8" else bits_dtype(dtype), poison)
    view = strided(memory, shape, strides)
    near = tensors_over(memory, (view,), torch.int8 if dtype == "int8" else TORCH_DTYPES[dtype], device)[0]
    if not case.far or not last:
        return with_far_axis(case, near, "caches" if last else "scale_caches", ("page", "place", "head"))
    return spread(near, 0, stride_of(near, 0, case.num_pages))


LAUNCHER: Final = "cache_write:cache_write"
WRITE_ROLES: Final = Roles(ROLES, NAMES, NEEDED, "a cache write")
_CACHES: Final = {"key_cache": "keys", "value_cache": "values"}
_PROMISED: Final = frozenset(("skipped", "heads_first", "strides", "fused", "padded_tokens", "overflow", "far"))
"""What the names of other parameters than this project's own promise."""
_OF_STRIDES: Final = frozenset(("heads_first", "strides", "value_strides", "far"))
"""Features of caches that a copy in another layout cannot have."""


@dataclass(frozen=True)
class WriteTarget(SmallTarget):
    """A callable that writes caches in a layout, and may be told what kind of caches it gets."""

    @property
    def _layout(self) -> Layout:
        return self.match.binding.cache_layout or LAYOUTS["rows"]

    def value(  # noqa: PLR0911 - one for each kind of role
        self, role: str, tensors: WriteTensors, forms: Forms
    ) -> object:
        """Return the argument of a role; caches of scales are None for kinds without, scales too where they may be."""
        match role:
            case "key_cache" | "value_cache":
                return self._cache(role, tensors.outputs[role], forms)
            case "kv_cache":
                return self._joined(tensors, forms)
            case "k_scale_cache" | "v_scale_cache":
                return tensors.outputs[role].tensor if role in tensors.outputs else None
            case "k_scale" | "v_scale":
                used = self.match.published or tensors.kv_quant_mode == 1 or not optional(self, role)
                return getattr(tensors, role) if used else None
            case "query_lens":
                return forms.given(role, torch.ones_like(tensors.slot_mapping, dtype=torch.int32))
            case "query_start_loc":
                count = len(tensors.slot_mapping) + 1
                return forms.given(role, torch.arange(count, dtype=torch.int32, device=tensors.device))
            case "block_table" | "seq_lens":
                size = tensors.outputs["key_cache"].tensor.shape[1]
                slots = tensors.slot_mapping
                numbers = slots[:, None] // size if role == "block_table" else slots % size + 1
                return forms.given(role, numbers.int())
            case "max_query_len":
                return 1
        return getattr(tensors, role)

    def _cache(self, name: str, output: OutputTensor, forms: Forms) -> torch.Tensor:
        if self._layout == LAYOUTS["rows"]:
            return output.tensor
        return _arranged(name, output, getattr(self._layout, _CACHES[name]), forms)

    def _joined(self, tensors: WriteTensors, forms: Forms) -> torch.Tensor:
        """Return one cache with the columns of keys and then those of values, as a copy in the target's layout."""
        both = [tensors.outputs[name] for name in _CACHES]
        size = both[0].tensor.shape[-1]
        bits = torch.cat([bits_of(each.tensor) for each in both], -1)
        shape = _shape(bits, self._layout.keys)
        values = bits.reshape(shape).view(both[0].tensor.dtype)
        copy = forms.output("kv_cache", both[0], values, lambda found: found.reshape(bits.shape)[..., :size])
        forms.written["its values"] = forms.written["kv_cache"]._replace(
            output=both[1], back=lambda found: found.reshape(bits.shape)[..., size:]
        )
        return copy

    def variants(self) -> Iterator[tuple[WriteTarget, str]]:
        """Yield the target with each layout of its caches that it does not state."""
        if self.match.published or self.match.binding.layout is not None:
            return
        for name, layout in LAYOUTS.items():
            if name != "latent" and ("block_table" not in self.roles or layout.pages):
                yield _with_layout(self, name), f"Caches are {layout.words}"

    def run(self, tensors: Any) -> Called:
        """Call the target on tensors, a second time for the values where it has no role for them."""
        if not {"value", "kv_cache"}.isdisjoint(self.roles):
            return super().run(tensors)
        first = super().run(tensors)
        outputs = dict(zip(tensors.outputs, reversed(tensors.outputs.values()), strict=True))
        swapped = dataclasses.replace(tensors, key=tensors.value, value=tensors.key, outputs=outputs)
        return Called((*first.changed, *super().run(swapped).changed))


def _shape(bits: torch.Tensor, pattern: str) -> tuple[int, ...]:
    """Return the shape of a pattern that keeps the order of the axes."""
    sizes = dict(zip(AXES, (*bits.shape, 1), strict=True))
    return tuple(math.prod(sizes[axis] for axis in group) for group in groups_of(pattern))


def _arranged(name: str, output: OutputTensor, pattern: str, forms: Forms) -> torch.Tensor:
    """Return a copy of a cache in the layout of a pattern, pieces of 16 bytes included."""
    own = bits_of(output.tensor)
    x = max(1, 16 // own.element_size())
    size = own.shape[3]
    pieces = (size // x, x) if size % x == 0 else (1, size)
    whole = own.reshape(*own.shape[:3], *pieces)
    axes = [AXES.index(axis) for group in groups_of(pattern) for axis in group]
    ordered = whole.permute(axes)
    sizes = dict(zip(AXES, whole.shape, strict=True))
    shape = tuple(math.prod(sizes[axis] for axis in group) for group in groups_of(pattern))
    inverse = [axes.index(axis) for axis in range(len(axes))]

    def back(bits: torch.Tensor) -> torch.Tensor:
        return bits.reshape(ordered.shape).permute(inverse).reshape(own.shape)

    return forms.output(name, output, ordered.reshape(shape).view(output.tensor.dtype), back)


def _with_layout(target: WriteTarget, name: str) -> WriteTarget:
    native = name == "rows" and "kv_cache" not in target.roles
    features = target.domain.features - (frozenset() if native else _OF_STRIDES)
    return target.with_domain(replace(target.domain, features=features), layout=name)


def load(name: str, binding: Binding | None) -> WriteTarget:
    """Return the target that a specification names; raises :class:`TargetError` where its parameters do not fit.

    One without parameters for scales is not given the caches that need them.
    """
    call, match = found(name, binding, (NAME, LAUNCHER), WRITE_ROLES)
    roles = match.binding.parameter_of
    target = WriteTarget(name, call, domain=WriteDomain(), binding=binding, how=match)
    needed = {role for role in roles if not optional(target, role)}
    domain: Any = WriteDomain(stored_as=tuple(each for each in get_args(StoredType) if _fits(each, roles, needed)))
    if not match.published:
        lacking = {"skipped", "padded_tokens"} if "block_table" in roles else set()
        domain = replace(domain, features=_PROMISED - lacking)
    target = dataclasses.replace(target, domain=limited(domain, match.binding))
    layout = match.binding.layout or ("rows" if match.published else None)
    return target if layout is None else _with_layout(target, str(layout))


def _fits(stored_as: StoredType, roles: Collection[str], needed: Collection[str]) -> bool:
    """Return whether a target with parameters for these roles, some of them ``needed``, writes caches of a type."""
    if stored_as.endswith(OWN_SCALES):
        return all(scale in roles for scale in SCALE_CACHES)
    if any(scale in needed for scale in SCALE_CACHES):
        return False
    return not stored_as.startswith("float8") or all(scale in roles for scale in SCALES)


QUOTIENT: Final = 4 * UNIT
LEAST_SCALE: Final = 1e-5
LIMITS: Final = {torch.int8: 127.0} | {
    dtype: torch.finfo(dtype).max for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
}
"""What a scale makes of the largest magnitude."""
CACHE_OF: Final = {"k_scale_cache": "key_cache", "v_scale_cache": "value_cache"}
"""The cache of each cache of scales."""
EXACT: Final = 0.25
"""The bound of an exact element in spacings at most: any other number of its type is twice as far away, or more."""
MOST_READ: Final = 200
"""Of more tokens, some all over the caches are read back: each is a sequence."""


class WriteExperiment(SmallExperiment):
    """One cache write on one target and one backend."""

    @staticmethod
    def materialise(case: WriteCase, device: str = "cpu", **changes: Any) -> WriteTensors:
        """Return the tensors of a case, made with the options of the function of that name."""
        return materialise(case, device, **changes)

    @staticmethod
    def with_other_numbers(case: WriteCase) -> WriteCase:
        """Return the case with other numbers of an ordinary magnitude."""
        return replace(case, seed=case.seed ^ 1, magnitude=1.0)

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answers to the first launch, computed from the inputs as the launch left them."""
        return write(self.left)


def _poison_independence(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, variant=1)
    return SameBits(launch, "a launch on caches that held something else", "poison_dependent")


def _token_order(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, reverse=True)
    order = torch.arange(experiment.case.num_tokens - 1, -1, -1, device=launch.tensors.device)
    return SameBits(launch, "with the tokens in reverse order", tokens=order)


def _other_slots(experiment: WriteExperiment) -> Comparison:
    return SameBits(experiment.launch(experiment.case, other=1), "with the tokens in other slots")


def read_back(experiment: WriteExperiment) -> Comparison:
    """Launch unified attention on the written cache of values, or on that of keys as if they were values.

    Each written token is a sequence that ends at its slot. A window of 1 key lets it see only that slot, so that its
    output is the number there. The write and the read may both be off, so their bounds add up.
    """
    written = experiment.left
    tokens = (written.slot_mapping >= 0).nonzero().flatten()
    if not len(tokens):
        return second_launch(experiment)  # there is nothing to read
    tokens = tokens[:: -(-len(tokens) // MOST_READ)]
    target = built_in("unified")
    assert target is not None
    target = target.on_device(experiment.backend.tensor_core_slack)
    of_keys = bool(experiment.case.seed % 2)
    name = "key_cache" if of_keys else "value_cache"
    case = attention_case_of(experiment, len(tokens))
    tensors = _reading(attention_tensors.materialise(case, experiment.place), written, tokens, name)
    with experiment.backend.unrecorded(own=False):
        launch = Experiment(case, target, experiment.backend).launch_tensors(tensors)
    own, kept = attend(tensors, target.rounding_model)["out"], experiment.reference[name]
    scale = float(written.k_scale if of_keys else written.v_scale) if experiment.case.is_fp8 else 1.0
    value, error = kept.value[tokens] * scale, kept.bound[tokens] * abs(scale)
    value, bound = stored_bound(value, error, tensors.query.dtype)  # the kernel rounds a dequantised number
    known = kept.judged.expand_as(kept.value)[tokens] & bound.isfinite()
    exact = Expected(value.nan_to_num(0.0, 0.0, 0.0), bound, known)
    both = dataclasses.replace(own, bound=own.bound + bound, judged=own.judged & known)
    return WithinBound(launch, f"unified attention on the written {name}", {"out": exact}, own={"out": both})


def attention_case_of(experiment: WriteExperiment, num_tokens: int) -> AttentionCase:
    """Return a case with as many one-key sequences as tokens were written, of the sizes and types of the caches."""
    case = experiment.case
    kept = case.dtype if case.is_fp8 else case.cache_dtype
    assert kept != "int8"
    assert case.cache_dtype != "int8"
    return AttentionCase(
        (Sequence(1),) * num_tokens,
        heads=HeadLayout(case.num_heads, 1, case.head_size),
        dtypes=DTypes(kept, case.cache_dtype, kept),
        pages=PageLayout(case.page_size),
        scales=Scales(k=case.v_scale, v=case.k_scale if case.seed % 2 else case.v_scale),
        window=1,
    )


def slots_of_tokens(written: WriteTensors, tokens: torch.Tensor) -> torch.Tensor:
    """Return the slots of some tokens."""
    return written.slot_mapping[tokens]


def _reading(tensors: AttentionTensors, written: WriteTensors, tokens: torch.Tensor, name: str) -> AttentionTensors:
    """Return the tensors with the written caches, and each sequence at the slot of its token."""
    cache, slots = written.outputs[name].tensor, slots_of_tokens(written, tokens)
    tensors.block_table[:, 0] = torch.div(slots, tensors.block_size, rounding_mode="floor").int()
    places = (slots % tensors.block_size).tolist()
    return dataclasses.replace(
        tensors,
        key_cache=cache,
        value_cache=cache,
        seq_lens=numbers_like(tensors.seq_lens, [place + 1 for place in places]),
        context_lens=tuple(places),
    )


WriteExperiment.second = {
    "determinism": second_launch,
    "poison_independence": _poison_independence,
    "token_order": _token_order,
    "other_slots": _other_slots,
    "read_back": read_back,
}


@torch.inference_mode()
def write(tensors: WriteTensors) -> Reference:
    """Return what the slots of all tokens must hold, by the names of the caches; those of skipped tokens are 0."""
    found = {}
    for name, (new, scale) in parts_of(tensors).items():
        known, live = stored(new, scale, tensors, name), tensors.outputs[name].live
        if live is not None:
            value, bound = known.value.masked_fill(~live, 0.0), known.bound.masked_fill(~live, torch.inf)
            known = Expected(value, bound, known.judged)
        found[name] = known
    return found


def parts_of(tensors: WriteTensors) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the new numbers of each output, those of its tokens only, and the scale of its cache."""
    rows = len(tensors.slot_mapping)
    of_keys, of_values = (tensors.key[:rows], tensors.k_scale), (tensors.value[:rows], tensors.v_scale)
    return {name: of_keys if name.startswith("k") else of_values for name in tensors.outputs}


@torch.inference_mode()
def stored(new: torch.Tensor, scale: torch.Tensor, tensors: WriteTensors, name: str) -> Expected:
    """Return what an output must hold of new numbers, whatever their slots are."""
    dtype = tensors.outputs[name].tensor.dtype
    if "k_scale_cache" in tensors.outputs:
        return _with_own_scale(
            new.double(), tensors.outputs[CACHE_OF.get(name, name)].tensor.dtype, of_scale=name in CACHE_OF
        )
    if is_fp8_dtype(dtype):
        exact = new.double() / scale.double()
        value, bound = stored_bound(exact, exact.abs() * QUOTIENT + FLUSHED, dtype)
    else:
        cast = new.to(dtype).double()
        info = torch.finfo(dtype)
        bound = cast.abs().clamp_min(info.smallest_normal) * (EXACT * info.eps)  # infinite for infinity
        value = cast.nan_to_num(0.0, 0.0, 0.0)
    return Expected(value, bound, torch.ones(1, 1, 1, dtype=torch.bool, device=value.device))


def _with_own_scale(new: torch.Tensor, dtype: torch.dtype, *, of_scale: bool) -> Expected:
    """Return the scale of each token and head, or the numbers that are stored with it."""
    scale = new.abs().amax(-1) / LIMITS[dtype]
    judged = scale >= LEAST_SCALE
    if of_scale:
        return Expected(scale, scale * QUOTIENT + FLUSHED, judged)
    judged |= scale == 0.0
    known = with_scale(new, scale, dtype)
    return dataclasses.replace(known, judged=judged[..., None])


def with_scale(new: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Expected:
    """Return what a cache must hold of new numbers with a scale for each token and head, which is computed too."""
    judged = torch.ones_like(scale, dtype=torch.bool)
    exact = new / scale.masked_fill(scale == 0.0, 1.0)[..., None]
    error = exact.abs() * ((1.0 + QUOTIENT) * (1.0 + QUOTIENT) / (1.0 - QUOTIENT) - 1.0) + FLUSHED
    if is_fp8_dtype(dtype):
        return Expected(*stored_bound(exact, error, dtype), judged[..., None])
    return Expected(exact, 0.5 + error + UNIT * (exact.abs() + 1.0), judged[..., None])
