"""Output tensors: rows of tokens, rows behind heads, and slots of a cache that is written in place."""

from __future__ import annotations

import pytest
import torch

from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import GUARD_BYTES, bits_of, output_poison

BF16 = output_poison("bfloat16", 1)


def poisoned(*shape: int) -> torch.Tensor:
    """Return a bfloat16 tensor full of poison, between guards of it."""
    margin = GUARD_BYTES // 2
    memory = torch.full((int(torch.tensor(shape).prod()) + 2 * margin,), BF16 - 2**16, dtype=torch.int16)
    return memory[margin:-margin].view(torch.bfloat16).view(shape)


ROWS = OutputTensor(poisoned(6, 2, 3), BF16, (slice(0, 4),))
BY_HEAD = OutputTensor(poisoned(2, 6), BF16, (slice(None), slice(0, 4)), axes=("head", "token"))
PLACES = torch.tensor([2, 0, 1, 1]), torch.tensor([0, 3, 3, 1])
CACHE = OutputTensor(poisoned(3, 4, 2, 3), BF16, PLACES)


@pytest.mark.parametrize("output", [ROWS, BY_HEAD, CACHE], ids=["rows", "by head", "cache"])
def test_live_elements_are_copied_and_no_others(output: OutputTensor) -> None:
    axis = output.axes.index("token")
    live = torch.tensor([True, False, True, True]).view([4 if each == axis else 1 for each in range(len(output.axes))])
    for only in (None, live):
        given, target = (torch.full_like(bits_of(output.tensor), number) for number in (1, 0))
        OutputTensor(output.tensor, BF16, output.region, only, output.axes).copy_live(given, target)
        rows = target[output.region].movedim(axis, 0)
        wanted = [1, 1, 1, 1] if only is None else [1, 0, 1, 1]
        assert [bool((row == number).all()) for row, number in zip(rows, wanted, strict=True)] == [True] * 4
        assert int(target.sum()) == sum(wanted) * output.elements.numel() // 4


@pytest.mark.parametrize("output", [ROWS, BY_HEAD, CACHE], ids=["rows", "by head", "cache"])
def test_poison_is_unwritten_and_anything_else_is_not(output: OutputTensor) -> None:
    assert output.elements.isnan().all()
    assert output.unwritten.all()
    written = OutputTensor(torch.full_like(output.tensor, torch.nan), BF16, output.region, axes=output.axes)
    assert not written.unwritten.any()


def test_tokens_are_arranged_along_their_axis() -> None:
    tokens = torch.tensor([3, 1, 0])
    live = torch.tensor([True, False, True, True])
    rows = OutputTensor(ROWS.tensor, BF16, ROWS.region, live[:, None, None]).arranged(tokens, 5)
    assert (rows.tensor.shape[0], rows.elements.shape[0]) == (5, 3)
    assert bool(rows.unwritten.all())
    assert rows.live is not None
    assert rows.live.flatten().tolist() == [True, False, True]
    by_head = BY_HEAD.arranged(tokens, 5)
    assert by_head.elements.shape == (2, 3)
    cache = CACHE.arranged(tokens, 5)
    assert cache.elements.shape == (3, 2, 3)
    assert [index.tolist() for index in cache.region if isinstance(index, torch.Tensor)] == [[1, 0, 2], [1, 3, 0]]
    no_tokens = OutputTensor(poisoned(4), BF16, axes=("page",))
    assert no_tokens.arranged(tokens, 5) is no_tokens
