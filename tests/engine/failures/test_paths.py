"""A campaign finds what is wrong in one configuration or with one argument: one row for each bug, named rightly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.backends.kernel_coverage import KernelConfigurations, covered, merged_configurations
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.case.paths import with_configuration
from fuzz_attn.engine.failures.triage import KnownFailure, KnownFailures, is_same
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import FoundFailure, Results
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.outcome import cause
from fuzz_attn.report.printing import text_of
from fuzz_attn.report.run_documents import json_numbers
from fuzz_attn.report.summary import render

FOLDER: Final = Path(__file__).parents[2] / "sample_targets"
Run = Callable[..., Results]


def failures_of(results: Results) -> dict[str, FoundFailure]:
    """Return the rows of a run by what is wrong and right."""
    return {found.counterexample.verdict.only_with: found for found in results.failures}


@pytest.mark.slow
def test_two_configurations_that_are_wrong_in_different_ways_are_two_rows(campaign: Run) -> None:
    results = campaign("", setup=Setup(f"{FOLDER / 'autotuned.py'}:broken_decode"), max_cases=260)
    short, rescaled = "TILE=64, TILES_AT_ONCE=2, num_warps=4", "TILE=16, TILES_AT_ONCE=3, num_warps=1"
    rows = failures_of(results)
    assert len(rows) == len(results.failures) == 2
    by_own = {words.partition(";")[0]: found for words, found in rows.items()}
    assert set(by_own) == {f"wrong with {short}", f"wrong with {rescaled}"}
    assert "configuration 7" in by_own[f"wrong with {short}"].counterexample.trigger
    assert "configuration 2" in by_own[f"wrong with {rescaled}"].counterexample.trigger
    assert "right with the 1" in cause(by_own[f"wrong with {short}"])
    statistics = results.statistics
    assert covered(statistics.configurations) == "12 of 12"
    assert "configurations  12 of 12" in text_of(render(statistics)).replace("   ", "  ")
    (kernel,) = json_numbers(statistics)["configurations"]
    assert kernel == {"kernel": "decode_kernel", "left": (*range(12),), "launched": (*range(12),)}


def test_an_access_outside_in_one_configuration_is_found_there_and_only_there() -> None:
    case = AttentionCase((Sequence(1, 4),), family="paged")
    with IsolatedWorker(Setup(f"{FOLDER / 'autotuned.py'}:reads_beyond", backend="simulator")) as worker:
        verdicts = [
            worker.judge(Order(replace(case, launch=LaunchHints(configuration=number)))).verdict for number in range(12)
        ]
    assert [verdict.passed for verdict in verdicts] == [True] * 11 + [False]
    assert verdicts[-1].kind == "out_of_bounds"


def test_an_argument_that_no_role_names_is_one_row_and_replayed(campaign: Run) -> None:
    setup = Setup(f"{FOLDER / 'with_flags.py'}:broken_decode")
    results = campaign("", setup=setup, max_cases=400, until_failure=True)
    (row,) = results.failures
    words = "wrong with wide_loads=True; right with the default, wide_loads=False"
    assert row.counterexample.verdict.only_with == words
    assert cause(row).endswith(words)
    assert "argument wide_loads=True" in row.counterexample.trigger
    assert [each.partition("=")[0] for each in results.statistics.unexercised] == ["chunk", "absolute", "use_unknown"]
    saved = counterexamples.load(Path(row.path))
    assert saved.case.launch.arguments == (("wide_loads", True),)
    assert saved.binding is not None
    assert saved.binding.paths == {"wide_loads": (True,), "order": ("backward",)}
    assert [each.status for each in replay((Path(row.path),))] == ["FAILED"]


CASE: Final = AttentionCase((Sequence(2, 5),))


def known(number: int, *alike: int, more: tuple[str, ...] = ()) -> KnownFailure:
    """Return a shrunk failure of a configuration, with those that are wrong in the same way."""
    case = replace(CASE, launch=LaunchHints(configuration=number))
    found = counterexamples.signed("fake", "unified", None, case, Verdict("oracle", "mismatch", configurations=alike))
    found = msgspec.structs.replace(found, shrunk=True)
    return KnownFailure(0, number, found, "", frozenset((f"configuration {number}", *more)))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (known(3), known(3), True),
        (known(3), known(7), False),
        (known(3, 3, 7), known(7, 3, 7), True),
        (known(3, 3, 7), known(5, 5, 6), False),
        (known(3, 3, 7, more=("soft cap",)), known(7, 3, 7), False),
    ],
)
def test_failures_of_configurations_are_one_bug_where_they_are_wrong_alike(
    one: KnownFailure, other: KnownFailure, same: bool
) -> None:
    assert is_same(one, other) == same


def test_a_case_of_a_configuration_that_is_wrong_alike_is_known() -> None:
    failures = KnownFailures()
    failures.add(known(3, 3, 7))
    wrong = Verdict("oracle", "mismatch")
    orders = {number: Order(replace(CASE, launch=LaunchHints(configuration=number))) for number in (0, 3, 5, 7)}
    assert [number for number, order in orders.items() if failures.matching(order, wrong)] == [3, 7]


def test_a_failure_of_the_first_configuration_is_not_one_of_another() -> None:
    failures = KnownFailures()
    first = known(0, 0)
    assert first.trigger is not None
    assert with_configuration((), (0, 3)) == tuple(first.trigger) == ("configuration 0",)
    assert with_configuration(("configuration 3",), (0, 3)) == ("configuration 3",)
    assert with_configuration(("soft cap",), (5,)) == ("soft cap", "configuration 5")
    assert with_configuration(("soft cap",), ()) == ("soft cap",)
    failures.add(first)
    wrong = Verdict("oracle", "mismatch")
    orders = {number: Order(replace(CASE, launch=LaunchHints(configuration=number))) for number in (0, 3)}
    assert [number for number, order in orders.items() if failures.matching(order, wrong)] == [0]
    assert not is_same(first, known(3, 3))


def test_covered_configurations_of_shards_and_kernels_are_counted_together() -> None:
    first, second = (KernelConfigurations("a", (0, 1, 2), (number,)) for number in (0, 2))
    pruned = KernelConfigurations("b", (4, 5), (4,))
    assert merged_configurations((first, second, first)) == (KernelConfigurations("a", (0, 1, 2), (0, 2)),)
    assert covered(merged_configurations((first, pruned, second))) == "2 of 3 of a, 1 of 2 of b"
    assert covered(()) == ""
