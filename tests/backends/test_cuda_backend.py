"""What the cuda backend does without a GPU; tests/backends/test_on_gpu.py runs it on one."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
import torch
from triton import knobs
from triton.compiler import ASTSource

from fuzz_attn.backends import backend_named, cuda
from fuzz_attn.backends.backend import Backend

# Imported before a test changes Triton's mode: imports of Triton that come later would find its functions in the other.
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.errors import BackendError, DeviceLostError, NotCompiledInterrupt


@pytest.mark.parametrize(
    ("gpu", "interpret", "expected"),
    [(True, "0", cuda.CudaBackend), (True, "1", SimulatorBackend), (False, "0", SimulatorBackend)],
    ids=["a GPU", "a GPU, but the CPU is asked for", "no GPU"],
)
def test_auto_selects_a_gpu_if_there_is_one(
    gpu: bool, interpret: str, expected: type[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    assert type(backend_named("auto")) is expected


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(BackendError, match=r"^backend='cuda' needs a GPU, and torch sees none$"):
        cuda.CudaBackend().prepare()


def test_precisions_of_dots_are_read_from_the_lowered_kernel(tmp_path: Path) -> None:
    (tmp_path / "k.ttir").write_text(
        "%a = tt.dot %x, %y, %z : tensor<16x32xf32> * tensor<32x16xf32> -> tensor<16x16xf32> loc(#loc)\n"
        "%b = tt.dot %x, %y, %z, inputPrecision = tf32x3 : tensor<16x32xf32> * tensor<32x16xf32> -> ...\n"
        "%c = tt.dot %x, %y, %z, inputPrecision = tf32 : tensor<16x32xbf16> * tensor<32x16xbf16> -> ...\n"
    )
    (tmp_path / "k.llir").write_text("tt.dot %x, %y, %z, inputPrecision = tf32 : tensor<16x32xf32> * ...")
    files = {path.name: str(path) for path in tmp_path.iterdir()}
    assert {dot.precision for dot in cuda.arithmetic_in(files).dots} == {"ieee", "tf32x3"}, (
        "though the text is no module"
    )
    assert not cuda.arithmetic_in({}).dots


def answers(monkeypatch: pytest.MonkeyPatch, *errors: str | None) -> None:
    """Let the GPU end each wait with an error or without one; the last entry is repeated."""
    left = list(errors)

    def synchronize() -> None:
        error = left.pop(0) if len(left) > 1 else left[0]
        if error:
            raise RuntimeError(error)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: torch.ones(1))


def test_a_gpu_that_keeps_reporting_an_error_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "an illegal memory access was encountered", "CUDA error")
    with (
        pytest.raises(DeviceLostError, match=r"^an illegal memory access was encountered$"),
        cuda.CudaBackend().running(),
    ):
        raise ValueError("Triton noticed it first")


def test_an_error_that_is_reported_once_belongs_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "invalid configuration argument", None)
    with pytest.raises(RuntimeError, match=r"^invalid configuration argument$"), cuda.CudaBackend().running():
        pass


FAULT: Final = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in ..."


@pytest.mark.parametrize("fault", [FAULT, "Triton Error [CUDA]: misaligned address"])
def test_a_fault_is_no_exception_of_the_target_though_the_gpu_answers_afterwards(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, None)
    with pytest.raises(DeviceLostError, match=re.escape(fault)), cuda.CudaBackend().running():
        raise RuntimeError(fault)


def test_a_fault_that_the_gpu_reports_once_is_no_exception_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, FAULT, None)
    with pytest.raises(DeviceLostError, match=r"^CUDA error: an illegal"), cuda.CudaBackend().running():
        pass


def test_an_exception_of_the_target_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None)
    with pytest.raises(ValueError, match=r"^refused$"), cuda.CudaBackend().running():
        raise ValueError("refused")


def test_kernels_are_counted_while_a_target_runs_beside_another_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None)
    heard: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **told: heard.append(told["cache_hit"]))
    before, backend = knobs.compilation.listener, cuda.CudaBackend()
    with backend.running():
        for hit in (False, False, True):
            times = SimpleNamespace(total=500_000)
            knobs.compilation.listener(cache_hit=hit, metadata_group={}, times=times)
    assert knobs.compilation.listener is before
    assert heard == [False, False, True]
    assert [backend.new_kernels() for _ in range(2)] == [(2, 1, 1.0), (0, 0, 0.0)]


def test_scratch_is_poisoned_and_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None)
    with cuda.CudaBackend().running() as watch:
        scratch = torch.empty(3)
        assert bool(scratch.isnan().all())
        scratch.as_strided((4,), (1,)).fill_(0.0)
    assert [seen.kind for seen in watch.observations] == ["written_outside"]


def test_a_launch_ends_where_it_may_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None)
    backend = cuda.CudaBackend()
    original = ASTSource.make_ir
    with backend.running():
        assert ASTSource.make_ir is original
    backend.compiles = False
    with backend.running(), pytest.raises(NotCompiledInterrupt):
        ASTSource.make_ir(None, None, None, None, None, None)
    assert ASTSource.make_ir is original
