"""Tensor descriptors that a launcher makes: the arguments that take the place of each in the IR."""

from __future__ import annotations

from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor


def is_descriptor(value: object) -> bool:
    """Return whether a value is a tensor descriptor that was made on the host."""
    return isinstance(value, TensorDescriptor)


def descriptor_arguments(name: str, value: Any) -> list[tuple[str, str, Any]]:
    """Return name, type and value of what takes the place of a tensor descriptor argument in the IR.

    The type of the base tensor is left empty.
    """
    sizes = [(f"{name}.shape.{axis}", size) for axis, size in enumerate(value.shape)]
    strides = [(f"{name}.stride.{axis}", stride) for axis, stride in enumerate(value.strides)]
    flags = [(f"{name}.padding", value.padding == "nan")]
    if hasattr(value, "round_f32_to_tf32"):
        flags.append((f"{name}.round", value.round_f32_to_tf32))
    typed = [("i64", sizes), ("i64", strides), ("u1", flags), ("i32", sizes), ("i64", strides)]
    return [(name, "", value.base), *((part, type_, number) for type_, parts in typed for part, number in parts)]
