"""Recorded launches: which operation differs first between two kernels, in which program and run of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzz_attn.simulator.recorder import Comparison, Place, Recorder, compare, digests_of, text_of
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "summing_kernels.py"
TILES, BLOCK = 4, 8


def run(recorder: Recorder, kernels: Any, *, first: float = 1.0, programs: int = 3, **edits: int) -> torch.Tensor:
    """Launch the kernel on new tensors, and return its output."""
    x = torch.arange(programs * TILES * BLOCK, dtype=torch.float32)
    x[0] = first
    out = torch.zeros(programs, BLOCK)
    constants = {"BLOCK": BLOCK, "DOUBLED_TILE": -1, "LAST_PROGRAM": 99} | edits
    with simulate(recorder.simulator) as session:
        session.launching = recorder.launching
        kernels.summing_kernel[(programs,)](x, out, TILES, **constants)
    return out


def compared(kernels: Any, own: dict[str, Any], healthy: dict[str, Any] | None = None) -> Comparison:
    """Return the comparison of two runs."""
    recorders = Recorder(), Recorder()
    for recorder, given in zip(recorders, (own, healthy or {}), strict=True):
        run(recorder, kernels, **given)
    return compare(*recorders)


def test_runs_of_one_kernel_do_not_differ_though_their_tensors_lie_elsewhere(kernels: Any) -> None:
    held = torch.zeros(1000)  # other tensors get other addresses
    found = compared(kernels, {})
    assert held.numel()
    assert found.difference is None
    assert found.pairs == found.sites > 10


@pytest.mark.parametrize(
    ("own", "line", "place"),
    [
        ({"DOUBLED_TILE": 2}, "tl.where(tile == DOUBLED_TILE", (2, (0, 0, 0))),
        ({"LAST_PROGRAM": 1}, "if program <= LAST_PROGRAM:", (0, (2, 0, 0))),
        ({"first": float("nan")}, "x = tl.load(", (0, (0, 0, 0))),
    ],
)
def test_the_first_difference(
    kernels: Any, own: dict[str, Any], line: str, place: tuple[int, tuple[int, int, int]]
) -> None:
    found = compared(kernels, own).difference
    assert found is not None
    assert found.place is not None
    assert found.healthy_place is not None
    assert line in text_of(found.site.operation.location)
    assert (found.place.occurrence, found.place.program) == place


def test_a_program_that_only_the_first_kernel_runs(kernels: Any) -> None:
    found = compared(kernels, {"programs": 4}).difference
    assert found is not None
    assert found.healthy_place is None
    assert found.place is not None
    assert found.place.program == (3, 0, 0)


def test_a_program_that_only_the_healthy_kernel_runs(kernels: Any) -> None:
    found = compared(kernels, {"programs": 2}).difference
    assert found is not None
    assert found.place is None
    assert found.healthy_place is not None
    assert found.healthy_place.program == (2, 0, 0)


def test_a_second_run_fetches_a_value(kernels: Any) -> None:
    recorder = Recorder()
    expected = run(recorder, kernels)
    ((number, _),) = [
        (number, site) for number, site in recorder.sites_of(recorder.launches[0]).items() if site.part == "value"
    ]
    recorder.run_again_for(Place(0, number, 0, (1, 0, 0)))
    run(recorder, kernels)
    assert recorder.found is not None
    assert recorder.found.tolist() == expected[1].tolist()


def test_programs_record_in_a_recorders_own_simulator_only(kernels: Any) -> None:
    recorder, plain = Recorder(), Simulator()
    right = run(recorder, kernels)
    entries = len(recorder.launches[0].entries)
    x, out = torch.arange(3 * TILES * BLOCK, dtype=torch.float32), torch.zeros(3, BLOCK)
    x[0] = 1.0
    with simulate(plain):
        kernels.summing_kernel[(3,)](x, out, TILES, BLOCK=BLOCK, DOUBLED_TILE=-1, LAST_PROGRAM=99)
    assert torch.equal(out, right)
    assert entries > 0
    assert len(recorder.launches[0].entries) == entries


def test_digests_differ_where_an_element_does_and_not_between_kinds_of_nan() -> None:
    rows = torch.zeros(3, 5)
    rows[1, 2] = 2.0**-149
    first, second, third = digests_of(rows.numpy()).tolist()
    assert first == third != second
    nans = torch.tensor([[0x7FC00000], [-0x400000], [0x7F800001]], dtype=torch.int32).view(torch.float32)
    assert len(set(digests_of(nans.numpy()).tolist())) == 1
