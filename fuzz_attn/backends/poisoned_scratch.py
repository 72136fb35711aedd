"""Poisoned scratch: tensors that a target gets from ``torch.empty`` hold poison, between guard bands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from fuzz_attn.backends.backend import Observation
from fuzz_attn.inputs.storage import GUARD_BYTES

POISON: Final = 0xFF
"""The value of every byte: NaN in each floating-point type, -1 or the largest number in each integer type."""

_UNINITIALISED: Final[frozenset[Callable[..., Any]]] = frozenset(
    (
        torch.empty,
        torch.empty_like,
        torch.empty_permuted,
        torch.empty_strided,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    )
)


class PoisonedScratch(TorchFunctionMode):
    """While active, fills every uninitialised tensor with poison and puts it between guard bands of poison.

    Only calls from Python are caught; tensors that an extension allocates in C++ stay as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guards: list[tuple[str, torch.Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what the function returns, or a poisoned tensor like it if it is uninitialised."""
        given = kwargs or {}
        result = func(*args, **given)
        if func not in _UNINITIALISED or torch.compiler.is_compiling() or given.get("out") is not None:
            return result
        return self._guarded(result) if _is_plain(result) else result

    def observations(self) -> Iterator[Observation]:
        """Yield an observation for each tensor whose guard bands were written; the launches must have ended."""
        for name, guards in self._guards:
            written = int((guards != POISON).sum())
            if written:
                message = f"{written} bytes around {name}, which the target got from torch.empty, were written"
                yield Observation("written_outside", message)

    def _guarded(self, like: torch.Tensor) -> torch.Tensor:
        size = like.untyped_storage().nbytes()
        memory = torch.full((size + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8, device=like.device)
        bands = memory.as_strided((2, GUARD_BYTES), (GUARD_BYTES + size, 1))
        self._guards.append((f"{str(like.dtype).removeprefix('torch.')} {list(like.shape)}", bands))
        inside = memory[GUARD_BYTES : GUARD_BYTES + size].view(like.dtype)
        return inside.as_strided(like.shape, like.stride(), inside.storage_offset())


def _is_plain(result: Any) -> bool:
    """Return whether a tensor can be replaced by another: strided elements in ordinary memory, nothing special."""
    return (
        type(result) is torch.Tensor
        and result.layout == torch.strided
        and result.device.type in ("cpu", "cuda")
        and result.numel() > 0
        and result.storage_offset() == 0
        and not result.requires_grad
        and not result.is_quantized
        and not (result.device.type == "cpu" and result.is_pinned())
    )
