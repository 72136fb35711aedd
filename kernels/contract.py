"""What a launcher refuses before it launches: one exception, and the checks that every family shares.

A check reads shapes, dtypes, strides and host numbers only. Lengths, page numbers and scales live on the device, where
a look would cost a synchronisation: for them the caller's promise stands.
"""

import math
from collections.abc import Collection, Sequence

import torch

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BIAS_DTYPES = (*FLOAT_DTYPES, torch.float64)


class ContractError(ValueError):
    """An argument that a kernel of this project does not promise to handle."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as people write it, `float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")


def require_tensor(name: str, value: object) -> None:
    """Refuse anything but a tensor."""
    if not isinstance(value, torch.Tensor):
        raise ContractError(f"{name} must be a torch.Tensor, not {type(value).__name__}")


def require_dtype(name: str, tensor: torch.Tensor, allowed: Collection[torch.dtype]) -> None:
    """Refuse a tensor whose dtype is not among `allowed`."""
    if tensor.dtype not in allowed:
        names = ", ".join(dtype_name(dtype) for dtype in allowed)
        raise ContractError(f"{name} has dtype {dtype_name(tensor.dtype)}, must be one of {names}")


def require_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    """Refuse a tensor of another shape; None leaves a dimension free."""
    actual = tuple(tensor.shape)
    if len(actual) == len(shape) and all(want in (None, have) for have, want in zip(actual, shape, strict=True)):
        return
    wanted = ", ".join("any" if want is None else str(want) for want in shape)
    raise ContractError(f"{name} has shape {actual}, must be ({wanted})")


def require_unit_stride(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose neighbours along the last dimension are not neighbours in memory."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ContractError(f"{name} has stride {tensor.stride(-1)} in its last dimension, must be 1")


def require_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Refuse a tensor that lives elsewhere than q."""
    if tensor.device != device:
        raise ContractError(f"{name} is on {tensor.device}, must be on {device} like q")


def require_range(name: str, value: int, low: int, high: int | None = None) -> None:
    """Refuse an integer outside of [low, high]."""
    if value < low:
        raise ContractError(f"{name}={value} must be at least {low}")
    if high is not None and value > high:
        raise ContractError(f"{name}={value} must be at most {high}")


def require_finite(name: str, value: object) -> None:
    """Refuse NaN, the infinities, and what is no number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ContractError(f"{name}={value} must be a finite number")


def require_one_element(name: str, tensor: torch.Tensor) -> None:
    """Refuse a scale that is not one float32 element, which may be expanded (stride 0) to any shape."""
    require_dtype(name, tensor, (torch.float32,))
    repeated = all(size == 1 or stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0 or not repeated:
        raise ContractError(f"{name} has shape {tuple(tensor.shape)}, must hold one element")
