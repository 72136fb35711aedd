"""`fuzz_attn.check`: what it raises in a test with ``@given`` and outside, and what it tells Hypothesis."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings

from fuzz_attn import FuzzAttnError, KernelError, cases, check, counterexamples
from fuzz_attn import given as given_module
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.recipes import SinkRecipe
from fuzz_attn.engine.case_judge import CaseJudge, load
from fuzz_attn.engine.orders import Setup
from fuzz_attn.errors import DomainError, NotJudgedError
from fuzz_attn.given import is_final

TARGETS = Path(__file__).parents[1] / "sample_targets"
RIGHT = f"{TARGETS / 'torch_attention.py'}:unified_attention"
WRONG = f"{TARGETS / 'torch_attention.py'}:last_row_unwritten"
SMALL = AttentionCase((Sequence(2, 3),), softmax_scale=0.25)
FEW = settings(max_examples=25, deadline=None, database=None)


def test_outside_of_given_a_failure_is_explained_and_saved(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    check(RIGHT, SMALL, out=tmp_path)
    check(RIGHT, SMALL, "determinism", out=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(AssertionError, match=r"^[^\n]*never written[^\n]*oracle \(unwritten\): 16 of 32 ") as raised:
        check(WRONG, SMALL, out=tmp_path)
    error = raised.value
    assert isinstance(error, KernelError)
    assert isinstance(error, FuzzAttnError)
    assert error.path is not None
    found = counterexamples.load(error.path)
    assert (found.case, found.target, found.verdict.kind) == (SMALL, WRONG, "unwritten")
    assert found.verdict.explanation
    assert found.digest
    for words in ("2 query tokens, 3 in the cache before", f"replay {error.path} --trust", f"explain {error.path}"):
        assert words in str(error)
    with pytest.raises(KernelError):
        check(WRONG, error.path, out=tmp_path)
    assert len(list(error.path.parent.iterdir())) == 1, "the same case has one file"
    assert torch.get_num_threads() == before


def test_what_is_not_judged_is_rejected_inside_of_given_and_an_error_outside(tmp_path: Path) -> None:
    with_sinks = msgspec.structs.replace(SMALL, sinks=SinkRecipe())
    unpromised = msgspec.structs.replace(SMALL, softmax_scale=-0.25)
    refusing = f"{TARGETS / 'refusing.py'}:refuses_sinks"
    for kernel, case, words in (
        (RIGHT, unpromised, "does not promise scales of 0 or below"),
        (refusing, with_sinks, "refuses the case: "),
    ):
        with pytest.raises(NotJudgedError, match=words):
            check(kernel, case, out=tmp_path)
    with pytest.raises(DomainError, match=r"^relation='permuted' must be one of: "):
        check(RIGHT, SMALL, "permuted")
    with pytest.raises(DomainError, match=r"^case=3 must be of the type AttentionCase"):
        check(RIGHT, 3)

    judged: list[AttentionCase] = []

    @FEW
    @given(cases(refusing, max_seq_len=16))
    def in_test(case: AttentionCase) -> None:
        check(refusing, case, out=tmp_path)
        judged.append(case)

    in_test()
    assert judged
    assert all(case.sinks is None for case in judged)


def test_only_the_last_run_of_an_example_is_explained_and_saved(tmp_path: Path) -> None:
    seen: list[tuple[bool, Path | None]] = []

    @FEW
    @given(cases(WRONG))
    def wrong(case: AttentionCase) -> None:
        try:
            check(WRONG, case, out=tmp_path)
        except KernelError as error:
            seen.append((is_final(), error.path))
            raise

    with pytest.raises(KernelError) as raised:
        wrong()
    assert [final for final, _ in seen].count(True) == 1
    assert seen[-1] == (True, raised.value.path)
    assert all(path is None for final, path in seen if not final)
    assert is_final(), "outside of a test every case is shown"


def test_hypothesis_learns_features_and_if_asked_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    events, targets = list[str](), list[tuple[float, str]]()
    monkeypatch.setattr(given_module, "event", events.append)
    monkeypatch.setattr(given_module, "target", lambda value, label: targets.append((value, label)))

    @FEW
    @given(case=cases(RIGHT, window=True, sinks=True))
    def right(case: AttentionCase, *, toward_bound: bool) -> None:
        check(RIGHT, case, toward_bound=toward_bound)

    right(toward_bound=False)
    assert not targets
    right(toward_bound=True)
    assert {"feature: sliding window", "feature: sinks"} <= set(events)
    assert len(targets) > 12, "a batch without any output has no ratio"
    assert all(0.0 <= value <= 1.0 and label == f"error / bound of {RIGHT}" for value, label in targets)


def test_a_kernel_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = list[str]()

    def counted(setup: Setup) -> CaseJudge:
        loads.append(setup.target)
        return load(setup)

    monkeypatch.setattr("fuzz_attn.given.load", counted)
    target = f"{TARGETS / 'torch_attention.py'}:transposed_bias"
    for case in (SMALL, msgspec.structs.replace(SMALL, seed=1)):
        check(target, case)
    check(target, SMALL, binding={"rounding": {"scores": "float32"}})
    assert loads == [target, target], "another binding is another target"


def test_a_saved_failure_keeps_the_promises_that_a_replay_needs(tmp_path: Path) -> None:
    negative = msgspec.structs.replace(SMALL, softmax_scale=-0.25)
    binding = {"promises": ["scale_signs"]}
    with pytest.raises(KernelError) as raised:
        check(WRONG, negative, "determinism", binding=binding, out=tmp_path)
    assert raised.value.path is not None
    found = counterexamples.load(raised.value.path)
    assert found.binding is not None
    assert found.binding.promises == ("scale_signs",)
    assert found.relation is None, "the first launch is wrong by itself"
