"""Merging of states, end to end: the healthy kernel passes, seeded bugs are found, shrunk and saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import find

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.engine.failures.reduction import simplify
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.errors import CounterexampleError, TargetError
from fuzz_attn.operations.merge_states.state_case import StateCase, StateDomain, described, key_pool
from fuzz_attn.operations.merge_states.state_draws import state_cases
from fuzz_attn.operations.operation import Case
from fuzz_attn.operations.registry import operation_of, operation_of_family
from fuzz_attn.oracle.verdict import Verdict
from tests.operations.edited import EditedKernel, backend, drawn

KERNEL: Final = EditedKernel("merge_states")
OPERATION: Final = KERNEL.operation
DOMAIN: Final = StateDomain()


def test_the_healthy_kernel_passes() -> None:
    target = OPERATION.load_target("merge_states", None, None)
    cases = drawn(DOMAIN, 1, 100)
    assert not [(case, failed) for case, relation in cases if (failed := KERNEL.judged(target, case, relation))]
    assert {relation for _, relation in cases} == {None, *OPERATION.relations}
    assert {case.dtype for case, _ in cases} == set(DOMAIN.dtypes)
    assert {name for case, _ in cases for name in OPERATION.all_features_of(case)} == set(OPERATION.features)


@pytest.mark.slow
def test_the_healthy_kernel_passes_in_the_interpreter(campaign: Callable[..., Results]) -> None:
    results = campaign("merge_states", setup=Setup("merge_states", backend="interpreter"), max_cases=6)
    assert results.failure is None, results.failure
    assert results.statistics.cases == 6


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", KERNEL.bugs)
def test_a_seeded_bug_is_found_within_a_round(name: str, tmp_path: Path) -> None:
    target = KERNEL.target_with(name, tmp_path)
    assert any(KERNEL.judged(target, case, relation) for case, relation in drawn(DOMAIN, 2, 120))


def test_a_bug_shrinks_to_one_row_and_two_states(tmp_path: Path) -> None:
    target = KERNEL.target_with("merge_lse_is_the_maximum", tmp_path)
    case = StateCase(9, 5, 3, 80, "bfloat16", 100.0, 5.0, True, True, "nan", 3, 16, 99)
    fails: Callable[[Order], bool] = lambda order: bool(KERNEL.judged(target, order.case, order.relation))  # noqa: E731
    assert fails(Order(case))
    assert simplify(Order(case, "determinism"), fails, DOMAIN) == Order(StateCase(num_states=2))


def test_a_counterexample_names_its_operation(tmp_path: Path) -> None:
    case = StateCase(num_states=3, empty_states=True, poison="nan")
    found = counterexamples.signed("kernel.py:merge", "merge_states", "state_order", case, Verdict("oracle", "nan"))
    path = counterexamples.save(found, tmp_path)
    assert path.name == "oracle-nan-empty_states.json"
    assert '"operation": "merge_states"' in path.read_text(encoding="utf-8")
    assert counterexamples.load(path) == found
    path.write_text(path.read_text(encoding="utf-8").replace('"operation": "merge_states"', '"operation": "else"'))
    with pytest.raises(CounterexampleError, match="operation='else' must be one of attention, merge_states"):
        counterexamples.load(path)


def test_the_operation_follows_from_case_domain_and_family() -> None:
    assert operation_of(StateCase()) is operation_of(DOMAIN) is operation_of_family("merge_states") is OPERATION
    cases: tuple[Case, ...] = (StateCase(), AttentionCase(sequences=()))
    assert [operation_of(case).name for case in cases] == ["merge_states", "attention"]
    assert len({case.compile_key.number for case in cases}) == 2


def test_cases_shrink_to_one_row_and_two_states() -> None:
    assert find(state_cases(DOMAIN, key_pool(DOMAIN)), lambda case: True) == StateCase(num_states=2)


def test_two_different_cases_have_different_descriptions() -> None:
    cases = {case for case, _ in drawn(DOMAIN, 1, 100)}
    assert len({str(described(case)) for case in cases}) == len(cases)


def test_a_case_loses_each_of_its_traits() -> None:
    for case, _ in drawn(DOMAIN, 1, 100):
        for trait in OPERATION.aspects.traits:
            given: Any = case
            without = trait.without(given)
            assert not trait.present(without), trait.words


def test_a_function_with_other_parameters_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text("def merge(partial_outputs, partial_lses, out, lse, stream): ...\ndef less(out, lse): ...\n")
    with pytest.raises(TargetError, match="needs parameters that a merge of states does not have: stream"):
        OPERATION.load_target(f"{file}:merge", "merge_states", None)
    with pytest.raises(TargetError, match="lacks the parameters partial_outputs, partial_lses"):
        OPERATION.load_target(f"{file}:less", "merge_states", None)


@pytest.mark.parametrize("name", ["merge_reads_empty_states", "merge_lse_is_the_maximum"])
def test_a_verdict_names_the_outputs_of_empty_states_if_they_are_read(name: str, tmp_path: Path) -> None:
    target = KERNEL.target_with(name, tmp_path)
    experiment = OPERATION.experiment(StateCase(3, 4, 2, empty_states=True, poison="nan", seed=3), target, backend())
    (verdict, *_) = OPERATION.failures(experiment, None)
    assert not verdict.passed
    reads_empty = name == "merge_reads_empty_states"
    assert OPERATION.with_causes(verdict, experiment).poison == (("states",) if reads_empty else ())
