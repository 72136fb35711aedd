"""Configurations and optional arguments: launched as a case says, named where a failure needs them, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import pytest

from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.aspect_table import TABLE
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.description import describe
from fuzz_attn.case.parts import LaunchHints, PageLayout, Sequence
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import FuzzAttnError

Judge: TypeAlias = Callable[[str, Order], Answer]
FOLDER: Final = Path(__file__).parents[1] / "sample_targets"
LONG: Final = AttentionCase((Sequence(1, 29),), family="paged", softmax_scale=0.25)
PAGES: Final = AttentionCase((Sequence(1, 30),), family="paged", pages=PageLayout(block_size=4), softmax_scale=0.25)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Return a function that judges an order on a target of a file, in the simulator."""
    with ExitStack() as stack:

        @cache
        def worker_of(name: str) -> IsolatedWorker:
            binding = Binding(layout="rows")  # one is wrong on easy cases too
            return stack.enter_context(IsolatedWorker(Setup(f"{FOLDER / name}", binding=binding)))

        yield lambda name, order: worker_of(name).judge(order)


def with_configuration(case: AttentionCase, number: int) -> AttentionCase:
    return replace(case, launch=LaunchHints(configuration=number))


def test_a_case_chooses_the_configuration_of_each_launch(judge: Judge) -> None:
    for number in (0, 7):
        answer = judge("autotuned.py:decode", Order(with_configuration(LONG, number)))
        assert answer.verdict.passed
        (launched,) = answer.configurations
        assert (launched.kernel, launched.left, launched.launched) == ("decode_kernel", (*range(12),), (number,))


def test_a_configuration_beyond_the_last_one_counts_from_the_first_again(judge: Judge) -> None:
    (launched,) = judge("autotuned.py:decode", Order(with_configuration(LONG, 25))).configurations
    assert launched.launched == (1,)


def test_a_failure_names_the_configuration_that_it_needs(judge: Judge) -> None:
    short = AttentionCase((Sequence(1, 1),), family="paged", softmax_scale=0.25)
    verdict = judge("autotuned.py:broken_decode", Order(with_configuration(short, 7), explain=True)).verdict
    assert verdict.only_with == "wrong with TILE=64, TILES_AT_ONCE=2, num_warps=4; right with the 11 others"
    assert verdict.configurations == (7,)


def test_a_failure_of_another_configuration_is_another_way_to_be_wrong(judge: Judge) -> None:
    verdict = judge("autotuned.py:broken_decode", Order(with_configuration(LONG, 2), explain=True)).verdict
    assert verdict.only_with == (
        "wrong with TILE=16, TILES_AT_ONCE=3, num_warps=1; right with the 10 others; "
        "wrong in another way with TILE=64, TILES_AT_ONCE=2, num_warps=4"
    )


def test_configurations_that_are_wrong_in_the_same_way_are_one_failure(judge: Judge) -> None:
    verdict = judge("autotuned.py:broken_in_three", Order(with_configuration(LONG, 4), explain=True)).verdict
    assert verdict.configurations == (4, 3, 5)
    assert verdict.only_with == (
        "wrong with (TILE=32, TILES_AT_ONCE=1, num_warps=2) and (TILE=32, TILES_AT_ONCE=2, num_warps=2) and "
        "(TILE=32, TILES_AT_ONCE=3, num_warps=2); right with the 9 others"
    )


def test_what_is_wrong_in_all_configurations_names_none(judge: Judge) -> None:
    case = with_configuration(LONG, 1)
    verdict = judge("autotuned.py:always_broken", Order(case, explain=True)).verdict
    assert not verdict.passed
    assert verdict.only_with == ""


def test_explanation_says_it_too(judge: Judge) -> None:
    short = AttentionCase((Sequence(1, 1),), family="paged", softmax_scale=0.25)
    order = Order(with_configuration(short, 7), forensics=True)
    explanation = judge("autotuned.py:broken_decode", order).explanation
    assert explanation is not None
    assert explanation.only_with.endswith("right with the 11 others")


def test_another_configuration_agrees_or_fails_the_relation(judge: Judge) -> None:
    """The broken configuration is the second launch of a case that has the first one."""
    right = judge("autotuned.py:decode", Order(with_configuration(LONG, 5), "configurations"))
    assert right.verdict.passed
    wrong = judge("autotuned.py:second_broken", Order(LONG, "configurations")).verdict
    assert (wrong.property_name, wrong.kind) == ("configurations", "mismatch")
    assert "TILE=16, TILES_AT_ONCE=2, num_warps=1" in wrong.message


def test_a_failure_names_the_optional_argument_that_it_needs(judge: Judge) -> None:
    case = replace(PAGES, launch=LaunchHints(arguments=(("wide_loads", True), ("order", "backward"))))
    verdict = judge("with_flags.py:broken_decode", Order(case, explain=True)).verdict
    assert verdict.only_with == "wrong with wide_loads=True; right with the default, wide_loads=False"
    assert judge("with_flags.py:decode", Order(case)).verdict.passed


def test_an_argument_that_the_signature_lacks_is_an_error(judge: Judge) -> None:
    case = replace(PAGES, launch=LaunchHints(arguments=(("wider_loads", True),)))
    with pytest.raises(FuzzAttnError, match="the case has argument wider_loads=True, which the signature lacks"):
        judge("with_flags.py:decode", Order(case))


def test_cases_with_paths_are_lossless_and_old_ones_stay_as_they_were() -> None:
    launch = LaunchHints(configuration=7, arguments=(("a", True), ("b", None), ("c", 1), ("d", "x"), ("e", 0.5)))
    case = replace(PAGES, launch=launch)
    again = msgspec.json.decode(msgspec.json.encode(case), type=AttentionCase)
    assert again == case
    assert [type(value) for _, value in again.launch.arguments] == [bool, type(None), int, str, float]
    assert b"launch" not in msgspec.json.encode(PAGES)
    assert dict(describe(case))["launch"] == (
        "the launcher's choice, configuration 7 of the autotuner, a=True, b=None, c=1, d='x', e=0.5"
    )
    expected = ("configuration 7", "argument a=True", "argument b=None")
    assert [trait for trait in TABLE.traits_of(case) if trait in expected] == [*expected]
