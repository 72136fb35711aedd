"""Write target: a callable that writes new keys and values to a cache, in one of the published forms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

import torch
from msgspec.structs import replace

from fuzz_attn.binding.binding import AXES, LAYOUTS, Binding, Layout, groups_of
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import bits_of
from fuzz_attn.operations.cache_write.write_case import (
    NAME,
    NAMES,
    NEEDED,
    OWN_SCALES,
    ROLES,
    SCALE_CACHES,
    SCALES,
    StoredType,
    WriteDomain,
)
from fuzz_attn.operations.cache_write.write_tensors import WriteTensors
from fuzz_attn.operations.small_target import Forms, Roles, SmallTarget, found, limited, optional
from fuzz_attn.targets.target import Called

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
