"""Switches: programs that compute what they did, and what a chosen change makes of them."""

from typing import Any

import pytest
import torch

from fuzz_attn.errors import LoopLimitError
from fuzz_attn.simulator.kernel_changes import changes_of
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.switches import Site, Switches

KERNELS = "switched_kernels.py"


def launched(switches: Switches, kernels: Any) -> list[float]:
    """Return the sums over columns of ten numbers, in tiles of four."""
    x, out = torch.arange(1.0, 11.0), torch.zeros(4)
    with simulate(switches.simulator) as session:
        session.launching = switches.launching
        kernels.scaled_sum[(1,)](x, out, 10, 2.0, 3.0, TILE=4)
    numbers: list[float] = out.tolist()
    return numbers


def site_of(switches: Switches, operation: str, **wanted: Any) -> Site:
    return next(
        site
        for site in switches.sites
        if site.key.operation == operation and all(getattr(site.key, name) == each for name, each in wanted.items())
    )


def chosen(kernels: Any, operation: str, new: str) -> list[float]:
    """Return the sums with a change in words at the first operation of a name."""
    switches = Switches()
    launched(switches, kernels)
    site = site_of(switches, operation, operand=-1)
    change = next(change for change in changes_of(site, switches) if change.new == new)
    switches.chosen[site] = change.compute
    return launched(switches, kernels)


RIGHT = [30.0, 36.0, 20.0, 24.0]


def test_without_a_change_a_launch_is_as_ever(kernels: Any) -> None:
    switches = Switches()
    assert launched(switches, kernels) == RIGHT
    assert len(switches.sites) == len({site.key for site in switches.sites})
    assert launched(switches, kernels) == RIGHT


@pytest.mark.parametrize(
    ("operation", "new", "sums"),
    [
        ("arith.mulf", "load(x_ptr) * other_scale", [45.0, 54.0, 30.0, 36.0]),
        ("arith.mulf", "load(x_ptr)", [15.0, 18.0, 10.0, 12.0]),
        ("arith.cmpi", "offset >= length", [0.0, 0.0, 0.0, 0.0]),
        ("arith.mulf", "load(x_ptr) / scale", [7.5, 9.0, 5.0, 6.0]),
    ],
)
def test_a_change_replaces_a_value(kernels: Any, operation: str, new: str, sums: list[float]) -> None:
    assert chosen(kernels, operation, new) == sums


def test_an_argument_is_another_one(kernels: Any) -> None:
    switches = Switches()
    switches.passing = lambda kernel, passed: passed | {"scale": passed["other_scale"]}
    assert launched(switches, kernels) == [45.0, 54.0, 30.0, 36.0]
    assert [each.kernel for each in switches.launched] == ["scaled_sum"]


def test_a_changed_loop_that_runs_too_long_ends(kernels: Any) -> None:
    switches = Switches()
    launched(switches, kernels)
    switches.most_calls = 2 * switches.calls
    switches.calls = 0
    switches.passing = lambda kernel, passed: passed | {"length": 10_000}
    with pytest.raises(LoopLimitError):
        launched(switches, kernels)


def test_a_change_that_is_unknown_at_a_place_changes_nothing(kernels: Any) -> None:
    switches = Switches()
    launched(switches, kernels)

    def unknown(read: Any, value: Any) -> Any:
        raise IndexError

    switches.chosen[site_of(switches, "arith.mulf")] = unknown
    assert launched(switches, kernels) == RIGHT
