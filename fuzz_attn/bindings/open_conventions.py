"""Open conventions: what a binding must state before its target can be called, and does not."""

from __future__ import annotations

from typing import Final, get_args

from fuzz_attn.bindings.binding import Binding, Fp8Form, ScaleDirection, ScaleForm, WindowSpelling
from fuzz_attn.bindings.layouts import LAYOUTS

CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "layout": tuple(LAYOUTS),
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
