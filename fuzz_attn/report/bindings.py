"""Bindings in words: the rows of the table of ``fuzz-attn bind``, and a sentence for each convention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fuzz_attn.bindings.binding import Binding, TensorRecipe
from fuzz_attn.engine.messages import Ready

WINDOWS: Final = {
    "pair": "A window of W keys is passed as (W - 1, 0).",
    "keys": "A window counts keys, a row's own included: W.",
    "left": "A window counts the keys before a row's own: W - 1.",
}
SCALES: Final = {
    "tensor": "Scales are tensors of one element",
    "float": "Scales are floats",
    "per_head": "Scales are tensors with one element for each KV head",
}
DIRECTIONS: Final = {"multiply": "a stored number times its scale is the real one", "divide": "they divide"}
FP8: Final = {"typed": "fp8 caches have torch's fp8 types.", "bytes": "fp8 caches are passed as bytes (uint8)."}


def parameters_of(ready: Ready) -> Iterator[tuple[str, str, str]]:
    """Yield parameter, role and reason for every parameter of a target."""
    binding, reasons = ready.binding, ready.reasons
    for name in dict.fromkeys((*binding.roles, *binding.constants, *binding.tensors, *reasons)):
        yield name, _role(name, binding), reasons.get(name, "stated")


def _role(name: str, binding: Binding) -> str:
    if name in binding.roles:
        return binding.roles[name]
    if name in binding.constants:
        return f"the constant {binding.constants[name]!r}"
    return _tensor(binding.tensors[name]) if name in binding.tensors else ""


def _tensor(recipe: TensorRecipe) -> str:
    what = "scratch" if recipe.value is None else f"tensor of {recipe.value}"
    return f"{what} {recipe.dtype} [{', '.join(map(str, recipe.shape))}]"


def conventions_of(ready: Ready) -> Iterator[str]:
    """Yield a sentence for each convention that matters for the parameters of a target."""
    binding = ready.binding
    roles = set(binding.parameter_of)
    layout = binding.cache_layout
    yield f"Caches: {layout.words if layout else 'in a layout that is not known yet'}."
    yield "The output is returned." if binding.output == "returned" else "The output is written in place."
    if "window" in roles and binding.window:
        yield WINDOWS[binding.window]
    if roles & {"k_scale", "v_scale"} and binding.scales:
        yield f"{SCALES[binding.scales]}; {DIRECTIONS[binding.scale_direction or 'multiply']}."
    if binding.fp8:
        yield FP8[binding.fp8]
    for role, value in binding.off.items():
        if role in roles:
            yield f"{role} is off as {value!r}."
