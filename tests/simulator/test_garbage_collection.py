"""The garbage collector pauses while a program is made, and then runs again."""

from __future__ import annotations

import gc

import pytest

from fuzz_attn.simulator.execution import collection_paused


def paused_at_an_error(seen: list[bool]) -> None:
    with collection_paused():
        seen.append(gc.isenabled())
        raise ValueError("wrong")


def test_it_pauses_and_goes_on_after_an_error_too() -> None:
    seen = [gc.isenabled()]
    with pytest.raises(ValueError, match="wrong"):
        paused_at_an_error(seen)
    assert [*seen, gc.isenabled()] == [True, False, True]


def test_a_collector_that_does_not_run_stays_so() -> None:
    gc.disable()
    try:
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
