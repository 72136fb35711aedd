"""The reference does not depend on the cut into blocks, and unused slots are never read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, PageLayout, Sequence, Strides
from fuzz_attn.case.recipes import AlibiRecipe, PoisonRecipe, QQBiasRecipe, SinkRecipe, SlotPoison, TablePoison
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle import error_bound, row_blocks
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import EXP_UNITS, RoundingModel
from fuzz_attn.oracle.roundings import UNIT
from fuzz_attn.strategies.cases import cases

RAGGED = AttentionCase(
    sequences=(Sequence(3, 40), Sequence(0, 9), Sequence(1, 2), Sequence(17, 0), Sequence(0, 0), Sequence(5, 100)),
    heads=HeadLayout(2, 2, 6),
    pages=PageLayout(block_size=5, permuted=True, shared_prefix=1, spare_blocks=3, extra_columns=2),
    window=13,
    alibi=AlibiRecipe("arbitrary"),
    qq_bias=QQBiasRecipe("tree", extra_columns=-2),
    sinks=SinkRecipe(),
    softmax_scale=0.4,
    padded_tokens=3,
)


@pytest.mark.parametrize("block_cost", [0, 2**40])
@pytest.mark.parametrize("max_scores", [1, 500, 2**30])
@pytest.mark.parametrize("window", [0, 13])
def test_every_cut_gives_the_same_reference(
    window: int, max_scores: int, block_cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = materialise(replace(RAGGED, window=window))
    expected = attend(tensors)
    monkeypatch.setattr(row_blocks, "MAX_BLOCK_SCORES", max_scores)
    monkeypatch.setattr(row_blocks, "BLOCK_COST", block_cost)
    actual = attend(tensors)
    # Logits lie below 2^7. Eight roundings of a score below 8, ALiBi, the bias and the distance from the top move an
    # exponent by 4 * 2^-47 and weights by as much of themselves, in each of both. The bound allows a logit's two
    # exponentials: it contains the weights' difference for at least this exponent, and 2^-47 is a small share of it.
    own_share = 2 * 4 * 2.0**-47 / (2 * EXP_UNITS * UNIT)
    assert bool(((actual["out"].value - expected["out"].value).abs() <= own_share * expected["out"].bound).all())
    torch.testing.assert_close(actual["out"].bound, expected["out"].bound, rtol=own_share, atol=0.0)


MODELS = {
    "exact sums": RoundingModel(normalises_last=True),
    "narrow softmax": RoundingModel(scores="query", softmax="query", output="query"),
    "tf32": RoundingModel(input_precision="tf32", tensor_core_slack=2.0, rounded_denominator=True),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_bound_of_a_row_does_not_depend_on_rows_beside_it(
    model: RoundingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row in a block of its own has the same bound as in the blocks of the whole batch.

    The bounds of ill-conditioned rows are not used.
    """

    @settings(max_examples=20, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=cases(Domain()))
    def compare(case: AttentionCase) -> None:
        assume(case.num_tokens <= 120)
        tensors = materialise(case)
        together = attend(tensors, model)
        with monkeypatch.context() as patch:
            patch.setattr(row_blocks, "MAX_BLOCK_SCORES", 1)
            separate = attend(tensors, model)
        assert bool((together["out"].bound > 0.0).all())
        assert torch.equal(together["out"].judged, separate["out"].judged)
        bounds = (each["out"].bound[together["out"].judged[..., 0]] for each in (separate, together))
        torch.testing.assert_close(*bounds, rtol=1e-8, atol=0.0)

    compare()


def test_blocks_contain_every_token_and_respect_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "MAX_BLOCK_SCORES", 400)
    tensors = materialise(RAGGED)
    blocks = list(row_blocks.row_blocks(tensors))
    assert {int(token) for block in blocks for token in block.tokens.flatten()} == set(range(RAGGED.num_tokens))
    assert all(block.visible.numel() * 4 <= 400 or block.visible.shape[1] == 1 for block in blocks)


@pytest.mark.parametrize("size", [1, 50, 2**12])
def test_deviation_does_not_depend_on_its_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    weights, values, output = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 7, 9), (2, 9, 3), (2, 7, 3))
    )
    whole = (weights[..., None] * (values[:, None] - output[:, :, None]).abs()).sum(2)
    monkeypatch.setattr(error_bound, "MAX_DEVIATIONS", size)
    torch.testing.assert_close(error_bound.deviation(weights, values, output), whole)


SLOTS: tuple[SlotPoison, ...] = ("nan", "inf", "negative_inf", "huge")
TABLES: tuple[TablePoison, ...] = ("zero", "negative", "one_past", "huge")
DTYPES: tuple[DTypeName, ...] = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@settings(max_examples=40, deadline=None)
@given(
    poison=st.builds(
        PoisonRecipe, keys=st.sampled_from(SLOTS), values=st.sampled_from(SLOTS), table=st.sampled_from(TABLES)
    ),
    dtype=st.sampled_from(DTYPES),
    window=st.sampled_from((0, 1, 4, 13)),
    strides=st.sampled_from((Strides(), Strides(cache="blocks_first", cache_slot=3), Strides(q_head=2, q_token=1))),
)
def test_poison_never_reaches_the_reference(
    poison: PoisonRecipe, dtype: DTypeName, window: int, strides: Strides
) -> None:
    changes: dict[str, Any] = {"window": window, "dtypes": DTypes(dtype, dtype, dtype), "strides": strides}
    clean = attend(materialise(replace(RAGGED, **changes, poison=PoisonRecipe("huge", "huge", "zero"))))
    poisoned = attend(materialise(replace(RAGGED, **changes, poison=poison)))
    assert torch.equal(clean["out"].value, poisoned["out"].value)
    assert torch.equal(clean["out"].bound, poisoned["out"].bound)
    assert bool(clean["out"].bound.isfinite().all())
    assert bool((clean["out"].bound > 0).all())


def test_output_is_not_read() -> None:
    tensors = materialise(RAGGED)
    before = attend(tensors)
    tensors.output.fill_(7.0)
    after = attend(tensors)
    assert torch.equal(before["out"].value, after["out"].value)
    assert torch.equal(before["out"].bound, after["out"].bound)
