"""When a failure of a GPU and one of the simulator are the same."""

from __future__ import annotations

import pytest

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypes, Sequence
from fuzz_attn.engine.failures.triage import is_same_way, shown_in_same_way
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.oracle.verdict import Kind, Verdict

ORDER = Order(AttentionCase((Sequence(1, 16),)))
FP8 = Order(replace(ORDER.case, dtypes=DTypes(out="float8_e4m3fn")))
WRONG, UNWRITTEN, CRASH, HANG = (
    Verdict("oracle", kind, "it is") for kind in ("mismatch", "unwritten", "crash", "timeout")
)
OUTSIDE = Verdict("sanitizers", "out_of_bounds", "loads", site="/kernel.py:10")
GUARD = Verdict("sanitizers", "out_of_bounds", "a guard band was written")
ASSERTED = Verdict("sanitizers", "exception", "raised AssertionError", site="/kernel.py:12")


def raised(line: int) -> Verdict:
    return Verdict("oracle", "exception", "the target raised ValueError: no", site=f"/kernel.py:{line}")


@pytest.mark.parametrize(
    ("finding", "explaining", "order", "same"),
    [
        (WRONG, WRONG, ORDER, True),
        (WRONG, Verdict("permute_pages", "different_bits", "it is"), ORDER, True),
        (WRONG, UNWRITTEN, ORDER, False),
        (WRONG, UNWRITTEN, FP8, True),
        (WRONG, OUTSIDE, ORDER, True),
        (CRASH, OUTSIDE, ORDER, True),
        (HANG, OUTSIDE, ORDER, True),
        (GUARD, OUTSIDE, ORDER, True),
        (WRONG, raised(3), ORDER, False),
        (CRASH, WRONG, ORDER, False),
        (raised(3), raised(3), ORDER, True),
        (raised(3), raised(4), ORDER, False),
        (raised(3), OUTSIDE, ORDER, False),
        (raised(3), ASSERTED, ORDER, True),
        (CRASH, ASSERTED, ORDER, True),
        (WRONG, ASSERTED, ORDER, False),
    ],
)
def test_it_is_the_same_failure_on_both(finding: Verdict, explaining: Verdict, order: Order, same: bool) -> None:
    assert is_same_way(finding, explaining, order) is same


@pytest.mark.parametrize("kind", ["out_of_bounds", "uninitialised", "race", "overflow", "conflicting_store"])
@pytest.mark.parametrize("shown", ["written_outside", "input_changed", "nan", "unwritten", "timeout"])
def test_each_finding_may_show_as_anything_but_an_exception(kind: Kind, shown: Kind) -> None:
    assert is_same_way(Verdict("oracle", shown, "it is"), Verdict("sanitizers", kind, "it is"), ORDER)


def test_findings_come_first_and_other_failures_are_left_out() -> None:
    answer = Answer(WRONG, (raised(3), OUTSIDE))
    assert shown_in_same_way(WRONG, answer, ORDER) == (OUTSIDE, WRONG)
