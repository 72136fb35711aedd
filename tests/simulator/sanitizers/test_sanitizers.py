"""Each sanitizer finds its seeded bugs at their lines, and nothing in the correct forms."""

from __future__ import annotations

import inspect
import math
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.backends.simulator import _causes
from fuzz_attn.errors import LoopLimitError
from fuzz_attn.simulator.access_checks import Finding, FindingKind, RaceTracker
from fuzz_attn.simulator.session import simulate
from fuzz_attn.ttir.ir import Location

KERNELS = "defective_kernels.py"


def _line(kernel: Any, text: str, occurrence: int = 0) -> int:
    """Return the number of the line of a kernel's source that contains `text`."""
    lines, first = inspect.getsourcelines(kernel.fn)
    return [first + index for index, line in enumerate(lines) if text in line][occurrence]


def _only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [str(finding) for finding in findings]
    return findings[0]


def _run_table(kernels: Any, masked: bool, width: int = 3) -> tuple[list[Finding], torch.Tensor]:
    whole = torch.arange(20, dtype=torch.int32).reshape(4, 5)
    out = torch.zeros(4, dtype=torch.int32)
    lengths = torch.tensor([5, 9, 11, 12], dtype=torch.int32)
    with simulate() as session:
        kernels.table_kernel[(4,)](whole[:, :width], 5, lengths, out, PAGE=4, TILE=4, MASKED=masked)
    return session.findings, out


def test_block_table_read_past_the_row_in_a_live_allocation(kernels: Any) -> None:
    correct, expected = _run_table(kernels, masked=True)
    findings, out = _run_table(kernels, masked=False)
    assert not correct
    assert torch.equal(out, expected)
    finding = _only(findings)
    assert finding.kind is FindingKind.OUT_OF_BOUNDS_LOAD
    assert finding.location.line == _line(kernels.table_kernel, "pages = tl.load", 1)
    assert (finding.tensor, finding.index, finding.program, finding.count) == ("table_ptr", 3, (0, 0, 0), 4)


@pytest.mark.parametrize("columns", [8, 5])
def test_bias_rows_past_a_matrix_that_is_a_slice(kernels: Any, columns: int) -> None:
    matrix = torch.ones(40, 8)[:6, :columns]
    for masked in (True, False):
        out = torch.empty(6)
        with simulate() as session:
            kernels.bias_kernel[(2,)](matrix, 8, 6, columns, out, BLOCK_M=4, BLOCK_N=8, MASKED=masked)
        assert out.tolist() == [columns] * 6
        if masked:
            assert not session.findings
        else:
            finding = _only(session.findings)
            assert (finding.kind, finding.program, finding.index) == (FindingKind.OUT_OF_BOUNDS_LOAD, (1, 0, 0), 48)


def _copy(kernels: Any, out: torch.Tensor, *, masked: bool = True, shift: int = 0) -> list[Finding]:
    x = torch.arange(60.0).reshape(5, 12)
    with simulate() as session:
        kernels.copy_kernel[(5,)](x, 12, out, out.stride(0), HEAD_SIZE=12, PADDED=16, MASKED=masked, SHIFT=shift)
    return session.findings


def _run_split(kernels: Any, x: torch.Tensor, rows: int, *, across: bool) -> tuple[list[Finding], torch.Tensor]:
    """Copy `rows` rows of `[chunks, rows or more, run]`, all chunks."""
    chunks, _, run = x.shape
    out = torch.empty(-(-rows // 8) * 8, 16)
    with simulate() as session:
        kernels.split_kernel[(out.shape[0] // 8,)](
            x, x.stride(0), x.stride(1), rows, out, WIDTH=chunks * run, X=run, ACROSS=across
        )
    return session.findings, out


_SPLITS = {
    "dense": torch.arange(4 * 11 * 4.0).reshape(4, 11, 4),
    "padded columns": torch.arange(3 * 11 * 4.0).reshape(3, 11, 4),
    "single columns": torch.arange(12 * 11.0).reshape(12, 11, 1),
    "a slice of chunks": torch.arange(3 * 22 * 4.0).reshape(3, 22, 4)[:, 4:15],
    "a slice of runs": torch.arange(4 * 11 * 9.0).reshape(4, 11, 9)[:, :, 2:6],
    "chunks in between": torch.arange(11 * 4 * 4.0).reshape(11, 4, 4).transpose(0, 1),
}


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("name", _SPLITS)
def test_columns_in_runs_are_copied_and_rows_past_the_end_found(kernels: Any, name: str, across: bool) -> None:
    x = _SPLITS[name]
    findings, out = _run_split(kernels, x, 11, across=across)
    expected = torch.full((16, 16), 0.5)
    width = x.shape[0] * x.shape[2]
    expected[:11, :width] = x.transpose(0, 1).reshape(11, width)
    assert not findings
    assert torch.equal(out, expected)
    finding = _only(_run_split(kernels, x[:, :10], 11, across=across)[0])
    assert (finding.kind, finding.program) == (FindingKind.OUT_OF_BOUNDS_LOAD, (1, 0, 0))
    assert (finding.index, finding.count) == (10 * x.stride(1), width)


@pytest.mark.parametrize("across", [False, True])
def test_columns_in_runs_that_nothing_has_written_are_found(kernels: Any, across: bool) -> None:
    with simulate() as session:
        x = torch.empty(4, 11, 4)
        out = torch.empty(16, 16)
        kernels.split_kernel[(2,)](x, 44, 4, 11, out, WIDTH=16, X=4, ACROSS=across)
    finding = _only(session.findings)
    assert (finding.kind, finding.index, finding.count) == (FindingKind.UNINITIALISED_READ, 0, 11 * 16)


def test_unmasked_head_dimension_stores_into_the_padding_of_strided_rows(kernels: Any) -> None:
    storage = torch.zeros(5, 16)
    assert not _copy(kernels, storage[:, :12])
    finding = _only(_copy(kernels, storage[:, :12], masked=False))
    assert finding.kind is FindingKind.OUT_OF_BOUNDS_STORE
    assert (finding.index, finding.count) == (12, 20)
    assert torch.equal(storage[:, 12:], torch.zeros(5, 4)), "nothing may be written outside of the tensor"


def test_unmasked_head_dimension_stores_into_the_next_row_of_a_dense_tensor(kernels: Any) -> None:
    findings = _copy(kernels, torch.zeros(5, 12), masked=False)
    assert {finding.kind for finding in findings} == {FindingKind.OUT_OF_BOUNDS_STORE, FindingKind.RACE}


def test_rows_that_overlap_inside_of_a_tensor_race(kernels: Any) -> None:
    """Each of five programs stores 16 columns to rows of 12; a sixth row keeps the last of them inside."""
    finding = _only(_copy(kernels, torch.zeros(6, 12), masked=False))
    assert (finding.kind, finding.tensor) == (FindingKind.RACE, "out_ptr")


ROWS_OF_STORES: dict[str, tuple[tuple[tuple[list[int], int], ...], bool]] = {
    "one store, adjacent": ((([12, 0, 6], 6),), True),
    "one store, by one element": ((([11, 0, 6], 6),), False),
    "one store, the same row": ((([0, 0], 6),), False),
    "two stores, adjacent": ((([0, 12], 6), ([6, 18], 6)), True),
    "two stores, by one element": ((([0, 12], 6), ([5, 18], 6)), False),
    "two widths, adjacent": ((([0, 20], 8), ([8, 28], 4)), True),
    "two widths, the wider one first by one element": ((([0, 20], 8), ([7, 28], 4)), False),
    "two widths, the narrower one first by one element": ((([8], 8), ([5], 4)), False),
    "two widths, one row inside of another": ((([0], 8), ([3], 1)), False),
}


@pytest.mark.parametrize("stores", ROWS_OF_STORES.values(), ids=ROWS_OF_STORES.keys())
def test_rows_that_overlap_by_one_element_are_not_apart(stores: tuple[tuple[tuple[list[int], int], ...], bool]) -> None:
    """Rows that are apart need no map of writers; of others, each element must be compared."""
    groups, apart = stores
    tracker = RaceTracker(64)
    for group, (starts, width) in enumerate(groups):
        programs = np.arange(len(starts)) + 10 * group
        found = tracker.store_rows(np.array(starts), width, programs.copy)
        assert found == (apart or group + 1 < len(groups))


def test_two_programs_that_share_one_element_of_their_rows_race(kernels: Any) -> None:
    """Five rows start 15 elements apart, and each of five programs stores 16."""
    out = torch.zeros(80)[:75].view(5, 15)
    finding = _only(_copy(kernels, torch.as_strided(out, (5, 16), (15, 1)), masked=False))
    assert (finding.kind, finding.tensor, finding.count) == (FindingKind.RACE, "out_ptr", 4)


def test_store_into_the_neighbouring_row(kernels: Any) -> None:
    guarded = torch.zeros(7, 12)
    finding = _only(_copy(kernels, guarded[1:6], shift=1))
    assert (finding.kind, finding.program, finding.index) == (FindingKind.OUT_OF_BOUNDS_STORE, (4, 0, 0), 60)
    assert guarded[6].eq(0).all()


def _merge(kernels: Any, masked: bool) -> tuple[list[Finding], torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([3, 16, 9], dtype=torch.int32)
    x = torch.ones(3, 16)
    out = torch.zeros(3)
    with simulate() as session:
        partial = torch.empty(3, 4)
        kernels.partial_kernel[(3, 4)](x, lengths, partial, BLOCK=4, SEGMENTS=4)
        kernels.merge_kernel[(3,)](partial, lengths, out, BLOCK=4, SEGMENTS=4, MASKED=masked)
    return session.findings, out, lengths.float()


def test_scratch_never_written_but_merged(kernels: Any) -> None:
    findings, out, expected = _merge(kernels, masked=True)
    assert not findings
    assert torch.equal(out, expected)
    finding = _only(_merge(kernels, masked=False)[0])
    assert (finding.kind, finding.tensor, finding.program) == (FindingKind.UNINITIALISED_READ, "partial_ptr", (0, 0, 0))
    assert (finding.index, finding.count) == (1, 4)


def test_what_torch_writes_is_initialised(kernels: Any) -> None:
    lengths = torch.tensor([3, 16, 9], dtype=torch.int32)
    with simulate() as session:
        partial = torch.empty(3, 4)
        partial[:, 1:].zero_()
        partial[:, 0] = 5
        kernels.merge_kernel[(3,)](partial, lengths, torch.zeros(3), BLOCK=4, SEGMENTS=4, MASKED=False)
    assert not session.findings


_UNINITIALISED = {
    "empty": lambda: torch.empty(3, 4),
    "empty_like": lambda: torch.empty_like(torch.zeros(3, 4)),
    "empty_strided": lambda: torch.empty_strided((3, 4), (4, 1)),
    "new_empty": lambda: torch.zeros(1).new_empty(3, 4),
    "new_empty_strided": lambda: torch.zeros(1).new_empty_strided((3, 4), (4, 1)),
}


@pytest.mark.parametrize("make", _UNINITIALISED.values(), ids=_UNINITIALISED.keys())
def test_every_way_to_make_an_uninitialised_tensor_is_watched(kernels: Any, make: Callable[[], torch.Tensor]) -> None:
    lengths = torch.tensor([3, 16, 9], dtype=torch.int32)
    with simulate() as session:
        kernels.merge_kernel[(3,)](make(), lengths, torch.zeros(3), BLOCK=4, SEGMENTS=4, MASKED=False)
    finding = _only(session.findings)
    assert (finding.kind, finding.count) == (FindingKind.UNINITIALISED_READ, 12)


def test_a_part_that_torch_writes_leaves_the_rest_uninitialised(kernels: Any) -> None:
    lengths = torch.tensor([3, 16, 9], dtype=torch.int32)
    with simulate() as session:
        partial = torch.empty(3, 4)
        partial[:2, 1:3].zero_()
        kernels.merge_kernel[(3,)](partial, lengths, torch.zeros(3), BLOCK=4, SEGMENTS=4, MASKED=False)
    finding = _only(session.findings)
    assert (finding.kind, finding.index, finding.count) == (FindingKind.UNINITIALISED_READ, 0, 8)


def test_a_load_of_what_is_forgotten_is_reported_with_its_line(kernels: Any) -> None:
    lengths, partial = torch.tensor([3, 16, 9], dtype=torch.int32), torch.zeros(3, 4)
    with simulate() as session:
        session.forget(partial[1, 2:3])
        kernels.merge_kernel[(3,)](partial, lengths, torch.zeros(3), BLOCK=4, SEGMENTS=4, MASKED=False)
    finding = _only(session.findings)
    assert (finding.kind, finding.index, finding.count) == (FindingKind.UNINITIALISED_READ, 6, 1)
    assert finding.location.line == _line(kernels.merge_kernel, "row * SEGMENTS + segments)")
    assert finding.address == partial.data_ptr()


def test_two_programs_that_store_different_values(kernels: Any) -> None:
    for differs in (False, True):
        out = torch.zeros(3, 16, dtype=torch.int32)
        with simulate() as session:
            kernels.shared_store_kernel[(6,)](out, VALUE_DIFFERS=differs, BLOCK=16)
        if differs:
            finding = _only(session.findings)
            assert (finding.kind, finding.tensor) == (FindingKind.RACE, "out_ptr")
            assert finding.location.line == _line(kernels.shared_store_kernel, "tl.store")
        else:
            assert not session.findings


def test_a_program_that_loads_what_another_stores(kernels: Any) -> None:
    for shift in (0, 1):
        x = torch.arange(8, dtype=torch.int32)
        with simulate() as session:
            kernels.exchange_kernel[(8,)](x, 8, SHIFT=shift)
        assert [finding.kind for finding in session.findings] == [FindingKind.RACE] * shift


def _sparse(*shape: int) -> torch.Tensor:
    """Return a float32 tensor of zeros that takes memory only where it is written; Linux only."""
    map_noreserve = 0x4000  # which Python does not name
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_noreserve
    size = math.prod(shape) * torch.float32.itemsize
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.float32).view(shape)


@pytest.mark.parametrize("wide", [True, False])
def test_a_32_bit_page_offset(kernels: Any, wide: bool) -> None:
    contents = torch.arange(4 * 1024.0).reshape(4, 64, 16)
    pages = torch.tensor([5, 2_097_151, 2_097_152, 3_000_000], dtype=torch.int32)
    cache = _sparse(4_000_000, 64, 16)
    cache[pages] = contents
    out = torch.zeros(4, 16)
    with simulate() as session:
        kernels.page_kernel[(4,)](cache, pages, out, PAGE_STRIDE=1024, HEAD_SIZE=16, WIDE=wide)
    if wide:
        assert not session.findings
        assert torch.equal(out, contents[:, 0])
    else:
        overflow = [finding for finding in session.findings if finding.kind is FindingKind.INTEGER_OVERFLOW]
        assert _only(overflow).program == (2, 0, 0)
        assert overflow[0].location.line == _line(kernels.page_kernel, "values = tl.load")
        assert torch.equal(out[:2], contents[:2, 0])


def test_an_overflow_before_a_loop_is_seen_inside(kernels: Any) -> None:
    x = _sparse(2**20, 8192)
    with simulate() as session:
        kernels.stepping_kernel[(2,)](x, torch.zeros(2), 3, 65536)
    overflow = [finding for finding in session.findings if finding.kind is FindingKind.INTEGER_OVERFLOW]
    assert _only(overflow).program == (1, 0, 0)
    assert overflow[0].location.line == _line(kernels.stepping_kernel, "pointer = ")


def test_an_overflow_that_is_masked_off_does_not_count(kernels: Any) -> None:
    cache = torch.arange(3000.0)
    pages = torch.tensor([0, 1, 2, 3_000_000] * 4, dtype=torch.int32)
    for limit, kinds in ((3, set()), (4_000_000, {FindingKind.INTEGER_OVERFLOW, FindingKind.OUT_OF_BOUNDS_LOAD})):
        with simulate() as session:
            kernels.masked_page_kernel[(1,)](cache, pages, torch.zeros(16), limit, PAGE_STRIDE=1000, BLOCK=16)
        assert {finding.kind for finding in session.findings} == kinds


@pytest.mark.parametrize(
    ("kernel", "tensor", "index", "follows"),
    [
        ("decode", "keys", 5 - 2**32, True),
        ("decode", "keys", 2**31 - 2**33, True),
        ("decode", "keys", -1, False),
        ("decode", "values", 5 - 2**32, False),
        ("prefill", "keys", 5 - 2**32, False),
    ],
)
def test_a_wrong_access_follows_from_an_overflow_if_its_offset_has_wrapped_around(
    kernel: str, tensor: str, index: int, follows: bool
) -> None:
    place = Location("k.py", 9)
    overflow = Finding(FindingKind.INTEGER_OVERFLOW, "decode", place, (0, 0, 0), "keys", 0, (0, 0), "overflows")
    load = Finding(FindingKind.OUT_OF_BOUNDS_LOAD, kernel, place, (0, 0, 0), tensor, index, (0, 2**31 + 64), "loads")
    assert load.follows_from(overflow) is follows
    assert not overflow.follows_from(load)
    assert _causes([overflow, load]) == ([overflow] if follows else [overflow, load])


def test_an_overflow_that_a_selection_drops_does_not_count(kernels: Any) -> None:
    cache = torch.arange(3000.0)
    pages = torch.tensor([0, 1, 2, 3_000_000] * 4, dtype=torch.int32)
    out = torch.zeros(16)
    with simulate() as session:
        kernels.selected_page_kernel[(1,)](cache, pages, out, 3, PAGE_STRIDE=1000, BLOCK=16)
    assert not session.findings
    assert out.tolist() == [0.0, 1000.0, 2000.0, 0.0] * 4


def test_a_sum_that_may_overflow_under_several_conditions(kernels: Any) -> None:
    out = torch.zeros(2)
    with simulate() as session:
        kernels.guarded_row_kernel[(2,)](torch.ones(40), out, 3, 1, 40, BLOCK=16)
    assert not session.findings
    assert out.tolist() == [0.0, 40.0]


def test_findings_survive_a_launch_that_does_not_end(kernels: Any) -> None:
    limits = torch.tensor([2**31 - 1, 3], dtype=torch.int32)
    with simulate() as session, pytest.raises(LoopLimitError):
        kernels.endless_kernel[(5,)](torch.zeros(5, dtype=torch.int32), limits)
    assert FindingKind.OUT_OF_BOUNDS_LOAD in {finding.kind for finding in session.findings}


def test_an_empty_tensor_has_no_elements(kernels: Any) -> None:
    out = torch.zeros(5, 12)
    with simulate() as session:
        kernels.copy_kernel[(5,)](torch.zeros(0, 12), 12, out, 12, HEAD_SIZE=12, PADDED=16, MASKED=True, SHIFT=0)
    finding = _only(session.findings)
    assert (finding.kind, finding.bounds) == (FindingKind.OUT_OF_BOUNDS_LOAD, (0, 0))


@pytest.mark.parametrize("step", [2, 3, 5, 16, 1000])
@pytest.mark.parametrize("missing", [0, 20])
def test_a_mask_of_any_density_is_followed_exactly(kernels: Any, step: int, missing: int) -> None:
    columns = torch.arange(32)[:, None] * 4 + torch.arange(4)[None, :] * 3
    wanted = columns % step == 0
    source = torch.arange(140.0 - missing).to(torch.float16)
    out = torch.zeros(32, 4)
    with simulate() as session:
        kernels.every_few_kernel[(2,)](source, out, STEP=step, SIZE=16)
    inside = wanted & (columns < source.numel())
    expected = torch.where(inside, source[columns.clamp(max=source.numel() - 1)].float(), -1.0)
    assert torch.equal(out, expected)
    outside = int((wanted & ~inside).sum())
    assert [finding.count for finding in session.findings] == ([outside] if outside else [])
    assert all(finding.kind is FindingKind.OUT_OF_BOUNDS_LOAD for finding in session.findings)
