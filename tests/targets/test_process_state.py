"""What a target changes in its process: flags of tensors, torch's settings, and Python's state."""

import builtins
import gc
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets import process_state
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.process_state import restored_process_state, target_defaults

HELD: list[Any] = []


def _attach_output(out: torch.Tensor, **_: Any) -> None:
    out.copy_(out.float() * torch.ones((), requires_grad=True))


FLAGS: dict[str, tuple[Callable[..., object], str]] = {
    "query": (lambda q, **_: q.requires_grad_(True), "the launch changed its input query: it requires gradients now"),
    "output": (lambda out, **_: out.requires_grad_(True), ""),
    "graph": (_attach_output, ""),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("relation", [None, "key_shift"])
def test_flags_of_tensors_never_break_the_harness(
    name: str, relation: str | None, case: AttentionCase, spec: Callable[[str], str]
) -> None:
    right = load_target(spec("unified_attention"))
    change, message = FLAGS[name]

    @wraps(right.call)
    def attend(**given: Any) -> None:
        right.call(**given)
        change(**given)

    verdict = check(Experiment(case, replace(right, call=attend), InterpreterBackend()), relation)
    assert (verdict.message, verdict.passed) == (message, not message)


def _enter_inference() -> None:
    HELD.append(torch.inference_mode())
    HELD[-1].__enter__()


SETTINGS: dict[str, Callable[[], object]] = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "warns": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "denormals": lambda: torch.set_flush_denormal(True),
    "gradients": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_torch_is_that_of_the_target_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_left_by_targets", None)
    before = process_state.current()
    with target_defaults():
        SETTINGS[name]()
        changed = process_state.current()
    assert process_state.current() == before != changed
    with target_defaults():
        assert process_state.current() == changed, "the target finds what it left"
        before.set()
    assert process_state.current() == before


def test_inference_mode_ends_with_the_call() -> None:
    with target_defaults():
        _enter_inference()
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    HELD.pop().__exit__(None, None, None)
    assert torch.is_grad_enabled()


def _patch(name: str) -> None:
    setattr(builtins, name, lambda *arguments: 0)


def _no_streams() -> None:
    sys.stdout = sys.stderr = None


CHANGES: dict[str, Callable[[], object]] = {
    "open": lambda: _patch("open"),
    "len": lambda: _patch("len"),
    "vars": lambda: _patch("vars"),
    "isinstance": lambda: _patch("isinstance"),
    "deleted": lambda: delattr(builtins, "range"),
    "streams": _no_streams,
    "collector": gc.disable,
    "warnings": lambda: warnings.simplefilter("error"),
    "no warnings": lambda: warnings.simplefilter("ignore"),
    "recursion": lambda: sys.setrecursionlimit(500),
    "folder": lambda: os.chdir("/"),
}


def _state() -> tuple[Any, ...]:
    streams = sys.stdout, sys.stderr
    return vars(builtins).copy(), streams, gc.isenabled(), list(warnings.filters), sys.getrecursionlimit(), os.getcwd()


@pytest.mark.parametrize("name", CHANGES)
def test_state_of_the_process_is_restored(name: str) -> None:
    before = _state()
    with restored_process_state():
        CHANGES[name]()
    assert _state() == before


def test_a_folder_that_a_target_removes_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    with restored_process_state():
        os.chdir("gone")
        (tmp_path / "gone").rmdir()
    assert Path.cwd() == tmp_path


def test_a_name_that_a_target_adds_to_the_builtins_stays() -> None:
    with restored_process_state():
        builtins._mine = 1  # type: ignore[attr-defined] # as gettext.install does
    assert vars(builtins).pop("_mine") == 1
