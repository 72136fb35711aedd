"""Tensors from torch.empty hold poison between guard bands while a target runs, and writes to these are reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.poisoned_scratch import PoisonedScratch
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.storage import GUARD_BYTES, storage_bytes
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

BASE = torch.zeros(4, 6)
MAKERS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "empty": lambda dtype: torch.empty((4, 6), dtype=dtype),
    "empty of numbers": lambda dtype: torch.empty(4, 6, dtype=dtype, device="cpu"),
    "empty_like": lambda dtype: torch.empty_like(BASE, dtype=dtype),
    "empty_strided": lambda dtype: torch.empty_strided((4, 6), (9, 1), dtype=dtype),
    "empty_permuted": lambda dtype: torch.empty_permuted((4, 6), (1, 0), dtype=dtype),
    "new_empty": lambda dtype: BASE.new_empty((4, 6), dtype=dtype),
    "new_empty_strided": lambda dtype: BASE.new_empty_strided((4, 6), (9, 1), dtype=dtype),
}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_uninitialised_tensors_hold_poison_and_keep_their_layout(make: Callable[[torch.dtype], torch.Tensor]) -> None:
    for dtype in (*FLOATS, torch.int64, torch.int32, torch.uint8):
        plain = make(dtype)
        with PoisonedScratch():
            scratch = make(dtype)
        assert (scratch.shape, scratch.stride(), scratch.dtype) == (plain.shape, plain.stride(), dtype)
        assert scratch.data_ptr() % 16 == 0
        if dtype.is_floating_point:
            assert bool(scratch.float().isnan().all())
        else:
            assert bool((scratch == (255 if dtype == torch.uint8 else -1)).all())


def test_filled_and_special_tensors_are_unchanged() -> None:
    with PoisonedScratch() as scratch:
        assert bool((torch.zeros(3) == 0).all())
        assert torch.empty(0, 4).shape == (0, 4)
        assert torch.empty(3, requires_grad=True).requires_grad
        assert torch.empty(3, device="meta").device.type == "meta"
        out = torch.ones(3)
        assert torch.empty(3, out=out) is out
    assert list(scratch.observations()) == []


def test_nothing_stays_patched_by_scratch() -> None:
    before = torch.empty
    with pytest.raises(ValueError, match="broken"), PoisonedScratch():
        raise ValueError("broken")
    assert torch.empty is before
    assert torch.empty(3).untyped_storage().nbytes() == 12


@pytest.mark.parametrize(("place", "written"), [(-1, 4), (24, 4), (23, 0), (24 + GUARD_BYTES // 4 - 1, 4)])
def test_a_write_around_scratch_is_reported(place: int, written: int) -> None:
    with PoisonedScratch() as scratch:
        tensor = torch.empty(4, 6)
        flat = tensor.as_strided((1,), (1,), tensor.storage_offset() + place)
        flat.fill_(1.0)
    expected = [f"{written} bytes around float32 [4, 6], which the target got from torch.empty, were written"]
    assert [seen.message for seen in scratch.observations()] == expected * bool(written)


def test_a_target_that_reads_unwritten_scratch_fails_in_the_interpreter(case: AttentionCase) -> None:
    verdict = check(experiment(case, lambda out, **_: out.copy_(torch.empty_like(out))))
    assert (verdict.property_name, verdict.kind) == ("oracle", "nan")


def test_a_target_that_writes_past_its_scratch_fails_in_the_interpreter(case: AttentionCase) -> None:
    right = load_target("unified").call

    def wrong(**given: Any) -> None:
        right(**given)
        storage_bytes(torch.empty(5))[-1] = 0

    verdict = check(experiment(case, wrong))
    assert (verdict.property_name, verdict.kind) == ("sanitizers", "written_outside")


def experiment(case: AttentionCase, call: Callable[..., object]) -> Experiment:
    backend = InterpreterBackend()
    backend.prepare()
    backend.preflight()
    return Experiment(case, Target("made here", call), backend)
