"""Who is to blame where a GPU has no memory left: the target only if other processes hold little of it."""

from __future__ import annotations

import pytest
import torch

from fuzz_attn.backends import cuda
from fuzz_attn.backends.cuda import CudaBackend, says_full
from fuzz_attn.errors import DeviceFullError

GIB = 2**30
SAID = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has 79 GiB"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: out of memory"),
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the GiB of a GPU of 80 that are free, and that this process holds."""
    memory = {"free": 0, "own": 0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (memory["free"] * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: memory["own"] * GIB)
    monkeypatch.setattr(cuda, "_wait", lambda: None)
    return memory


@pytest.mark.parametrize("error", SAID)
@pytest.mark.parametrize(("free", "own", "innocent"), [(1, 2, True), (39, 0, True), (78, 1, False), (1, 70, False)])
def test_who_is_to_blame(free: int, own: int, innocent: bool, error: RuntimeError, gpu: dict[str, int]) -> None:
    gpu.update(free=free, own=own)
    with pytest.raises(DeviceFullError if innocent else type(error), match="out of memory"), CudaBackend().running():
        raise error


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), MemoryError(), ValueError()])
def test_other_errors_are_as_they_were(error: Exception, gpu: dict[str, int]) -> None:
    assert not says_full(error)
    with pytest.raises(type(error)), CudaBackend().running():
        raise error
