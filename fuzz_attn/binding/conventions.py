"""Conventions: those that a binding must state before its target can be called, and all of a binding in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from fuzz_attn.binding.binding import (
    LEFT_OUT,
    Binding,
    Fp8Form,
    ScaleDirection,
    ScaleForm,
    TensorRecipe,
    WindowSpelling,
)
from fuzz_attn.binding.layouts import LAYOUTS

CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "layout": tuple(name for name in LAYOUTS if name != "latent"),  # a family of its own
    "window": get_args(WindowSpelling),
    "scales": get_args(ScaleForm),
    "scale_direction": get_args(ScaleDirection),
    "fp8": get_args(Fp8Form),
}
"""Every convention that names do not tell, with its values."""


def open_in(binding: Binding) -> tuple[str, ...]:
    """Return the conventions that matter for the roles of a binding and that it does not state."""
    return tuple(name for name in CHOICES if getattr(binding, name) is None and matters(name, binding))


def matters(name: str, binding: Binding) -> bool:
    """Return whether an argument of a call depends on a convention."""
    roles = set(binding.parameter_of)
    if name == "layout":
        return True
    return "window" in roles if name == "window" else bool({"k_scale", "v_scale"} & roles)


def how_to_state(name: str) -> str:
    """Return the line of a binding file that states a convention."""
    return " or ".join(f'{name} = "{value}"' for value in CHOICES[name])


WORDS: Final[dict[str, dict[str, str]]] = {
    "layout": {name: f"caches are {layout.words}" for name, layout in LAYOUTS.items()},
    "output": {"in_place": "the output is written in place", "returned": "the output is returned"},
    "window": {
        "pair": "a window of W keys is passed as (W - 1, 0)",
        "keys": "a window counts keys, a row's own included",
        "left": "a window counts the keys before a row's own",
    },
    "scales": {
        "tensor": "scales are tensors of one element",
        "float": "scales are floats",
        "per_head": "scales are tensors with one element for each KV head",
    },
    "scale_direction": {"multiply": "scales multiply", "divide": "scales divide"},
    "fp8": {"typed": "fp8 caches have torch's fp8 types", "bytes": "fp8 caches are passed as bytes (uint8)"},
    "family": {
        "unified": "every key is read from the cache",
        "paged": "each sequence has one query token",
        "context": "the keys of new tokens are read packed",
        "chunked": "the keys of new tokens are read packed where a sequence has several",
    },
}
"""Convention, then value: a phrase without a capital and a full stop."""


def phrase(name: str, value: Any) -> str:
    """Return a convention in words."""
    if value is None:
        return f"{name} is open"
    return WORDS[name][value] if isinstance(value, str) and name in WORDS else f"{name} is {value!r}"


def differences(binding: Binding, other: Binding) -> str:
    """Return in words what ``other`` says and ``binding`` does not."""
    names = [name for name in Binding.__struct_fields__ if getattr(binding, name) != getattr(other, name)]
    return ", ".join(_difference(name, getattr(binding, name), getattr(other, name)) for name in names)


def _difference(name: str, before: Any, after: Any) -> str:
    if name == "roles":
        return ", ".join(f"{each} is the {after[each]}" for each in after if before.get(each) != after[each])
    if name == "off":
        return ", ".join(
            f"{each} is off as {after[each]!r}" for each in after if before.get(each, LEFT_OUT) != after[each]
        )
    return phrase(name, after)


def capital(words: str) -> str:
    """Return words with a capital first letter."""
    return words[:1].upper() + words[1:]


def parameters_of(binding: Binding, reasons: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield parameter, role and reason for every parameter of a target."""
    for name in dict.fromkeys((*binding.roles, *binding.without_role, *reasons)):
        yield name, _role(name, binding), reasons.get(name, "stated")


def _role(name: str, binding: Binding) -> str:
    if name in binding.roles:
        return binding.roles[name]
    if name in binding.constants:
        return f"the constant {binding.constants[name]!r}"
    if name in binding.paths:
        return f"a path, also {' and '.join(map(repr, binding.paths[name]))}"
    if name in binding.sizes:
        return f"the size {binding.sizes[name]}"
    return _tensor(binding.tensors[name]) if name in binding.tensors else ""


def _tensor(recipe: TensorRecipe) -> str:
    what = "scratch" if recipe.value is None else f"tensor of {recipe.value}"
    return f"{what} {recipe.dtype} [{', '.join(map(str, recipe.shape))}]"


def conventions_of(binding: Binding) -> Iterator[str]:
    """Yield a sentence for each convention that matters for the parameters of a target, and each stated rounding."""
    for name in ("output", *(name for name in CHOICES if matters(name, binding))):
        yield capital(f"{phrase(name, getattr(binding, name))}.")
    for role, value in binding.off.items():
        if role in binding.parameter_of:
            yield f"{role} is off as {value!r}."
    for name, value in binding.rounding.items():
        yield f"rounding.{name} is {value!r} (stated)."
