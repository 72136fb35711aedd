"""Bindings in words: the rows of the table of ``fuzz-attn bind``, and a sentence for each convention."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz_attn.bindings.binding import Binding, TensorRecipe
from fuzz_attn.bindings.open_conventions import CHOICES, matters
from fuzz_attn.bindings.words import capital, phrase
from fuzz_attn.engine.messages import Ready


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
    """Yield a sentence for each convention that matters for the parameters of a target, and each stated rounding."""
    binding = ready.binding
    for name in ("output", *(name for name in CHOICES if matters(name, binding))):
        yield capital(f"{phrase(name, getattr(binding, name))}.")
    for role, value in binding.off.items():
        if role in binding.parameter_of:
            yield f"{role} is off as {value!r}."
    for name, value in binding.rounding.items():
        yield f"rounding.{name} is {value!r} (stated)."
