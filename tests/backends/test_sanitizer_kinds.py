"""What the simulator finds that a run on a CPU does not show is observed with a kind, a line and a class of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.engine.failures.triage import class_of, has_place
from fuzz_attn.oracle.verdict import Kind, Verdict

KERNELS = Path(__file__).parents[1] / "simulator/kernels/gpu_kernels.py"


def _conflicting(kernels: ModuleType) -> None:
    kernels.grouped_store_kernel[(1,)](torch.arange(16.0), torch.zeros(16), GROUP=2, BLOCK=16)


def _unordered(kernels: ModuleType) -> None:
    x, scratch, out = torch.rand(128), torch.zeros(128), torch.zeros(128)
    kernels.reversed_kernel[(1,)](x, scratch, out, BLOCK=128, SHIFT=32, BETWEEN="")


def _hinted(kernels: ModuleType) -> None:
    kernels.multiple_kernel[(1,)](torch.rand(64), torch.tensor([8], dtype=torch.int32), torch.zeros(16))


def _undefined(kernels: ModuleType) -> None:
    kernels.quotient_branch_kernel[(1,)](9, 0, torch.zeros(1))


@pytest.mark.parametrize(
    ("kind", "launch", "names_an_element"),
    [
        ("conflicting_store", _conflicting, True),
        ("unordered_load", _unordered, True),
        ("false_hint", _hinted, False),
        ("undefined_integer", _undefined, False),
    ],
)
def test_each_finding_has_a_kind_and_a_class(
    kind: Kind,
    launch: Callable[[ModuleType], None],
    names_an_element: bool,
    module_at: Callable[[Path], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", os.environ["TRITON_INTERPRET"])  # which the backend changes
    backend = SimulatorBackend()
    backend.prepare()
    kernels = module_at(KERNELS)
    with backend.running() as watch:
        launch(kernels)
    assert [observation.kind for observation in watch.observations] == [kind]
    observation = watch.observations[0]
    assert observation.site.startswith(f"{KERNELS}:")
    assert bool(observation.address) == names_an_element
    at_a_line = class_of(Verdict("sanitizers", kind, observation.message, site=observation.site))
    assert at_a_line == f"sanitizer {observation.site}"
    assert has_place(at_a_line)
    assert class_of(Verdict("sanitizers", kind)) == f"sanitizer {kind}"
