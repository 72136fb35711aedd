"""Virtual tensors: any logical size, pages only where a case refers to them."""

from __future__ import annotations

import pytest
import torch

from fuzz_attn.backends.simulator import FindingKind, SimulatorError, simulate, virtual_tensor
from tests.simulator.sample_kernels import add_kernel
from tests.simulator.specimen_kernels import copy_kernel, page_kernel


def _cache(num_pages: int = 9_000_000) -> torch.Tensor:
    return virtual_tensor(num_pages, [3, 8_999_999], torch.arange(2 * 4 * 2 * 128.0).reshape(2, 4, 2, 128))


def test_it_answers_what_a_launcher_asks() -> None:
    cache = _cache()
    assert cache.shape == (9_000_000, 4, 2, 128)
    assert cache.numel() > 2**33
    assert cache.stride() == (1024, 256, 128, 1)
    assert (cache.dtype, cache.device.type, cache.element_size()) == (torch.float32, "cpu", 4)


def test_views_keep_their_pages() -> None:
    head = _cache()[:, :, 1]
    assert head.stride() == (1024, 256, 1)
    assert head.storage_offset() == 128
    out = torch.zeros(1, 16)
    with simulate() as session:
        page_kernel[(1,)](head, torch.tensor([8_999_999]), out, PAGE_STRIDE=1024, HEAD_SIZE=16, WIDE=True)
    assert not session.findings
    assert torch.equal(out[0], torch.arange(1024.0 + 128, 1024 + 144))


def test_a_page_that_does_not_exist_reads_as_poison() -> None:
    out = torch.zeros(1, 16)
    with simulate() as session:
        page_kernel[(1,)](_cache(), torch.tensor([77]), out, PAGE_STRIDE=1024, HEAD_SIZE=16, WIDE=True)
    assert not session.findings
    assert out.isnan().all()


def test_bounds_are_those_of_the_logical_tensor() -> None:
    with simulate() as session:
        page_kernel[(1,)](
            _cache(), torch.tensor([9_000_000]), torch.zeros(1, 16), PAGE_STRIDE=1024, HEAD_SIZE=16, WIDE=True
        )
    (finding,) = session.findings
    assert finding.kind is FindingKind.OUT_OF_BOUNDS_LOAD
    assert finding.index == finding.bounds[1] == 9_000_000 * 1024


def test_stores_reach_the_pages() -> None:
    cache = virtual_tensor(3_000_000, [2_999_999], torch.zeros(1, 1024))
    with simulate():
        copy_kernel[(1,)](torch.ones(16), 16, cache[2_999_999:], 16, HEAD_SIZE=16, PADDED=16, MASKED=True, SHIFT=0)
    assert cache.page(2_999_999)[:16].eq(1).all()
    assert cache.page(2_999_999)[16:].eq(0).all()
    with pytest.raises(KeyError, match="page number=7 does not exist"):
        cache.page(7)


def test_rows_may_cross_from_page_to_page() -> None:
    pages = virtual_tensor(1000, [4, 5], torch.arange(20.0).reshape(2, 10))
    out = torch.zeros(20)
    with simulate():
        add_kernel[(1,)](pages[4:6], torch.zeros(20), out, 20, BLOCK=32)
    assert torch.equal(out, torch.arange(20.0))


def test_torch_itself_sees_no_values() -> None:
    with pytest.raises(SimulatorError, match="needs the values of a virtual tensor"):
        _ = _cache() + 1


@pytest.mark.parametrize(
    ("indices", "message"), [([1, 1], "distinct indices"), ([1, 100], r"must lie in \[0, num_pages=100\)")]
)
def test_impossible_pages_are_refused(indices: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        virtual_tensor(100, indices, torch.zeros(2, 4))
