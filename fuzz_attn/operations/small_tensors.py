"""Small tensors: tensors of small operations that are far along an axis."""

from __future__ import annotations

from typing import Any

import torch

from fuzz_attn.inputs.storage import spread, stride_of


def with_far_axis(case: Any, near: torch.Tensor, name: str, axes: tuple[str, ...]) -> torch.Tensor:
    """Return a tensor with that axis far which the case names; ``axes`` are its first axes, those it may name."""
    for place, axis in enumerate(axes):
        used = case.far_lengths.get(f"{name}_{axis}", 0)
        if f"{name}_{axis}" in case.far_axes:
            return spread(near, place, stride_of(near, place, used))
    return near
