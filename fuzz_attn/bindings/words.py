"""Words: a phrase for each convention of a binding."""

from __future__ import annotations

from typing import Any, Final

from fuzz_attn.bindings.binding import LEFT_OUT, Binding
from fuzz_attn.bindings.layouts import LAYOUTS

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
