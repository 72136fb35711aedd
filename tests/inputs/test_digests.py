"""Digests: the tensors of a case are the same bits on every machine, and a change of their generation is found."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    ConstantValues,
    DenormalScores,
    DenormalValues,
    IntegerValues,
    LevelScores,
    NeedleScores,
    NormalScores,
    OneHotValues,
    OutlierScores,
    OutlierValues,
    Override,
    PoisonRecipe,
    PositionValues,
    QQBiasRecipe,
    RampScores,
    SinkRecipe,
    UniformScores,
)
from fuzz_attn.inputs.tensors import digest_of, materialise
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
BATCH = (Sequence(3, 5), Sequence(0, 7), Sequence(1, 30), Sequence(6))

GOLDEN: dict[str, tuple[AttentionCase, str]] = {
    "plainest": (AttentionCase(sequences=(Sequence(1),)), "b24121b76d1dea4e"),
    "no_tokens": (
        AttentionCase(sequences=(Sequence(0, 3),), padded_tokens=1, pages=PageLayout(block_size=2)),
        "b28e69fd8ae70c71",
    ),
    "strided_features": (
        AttentionCase(
            sequences=BATCH,
            heads=HeadLayout(2, 3, 24),
            dtypes=DTypes(q="bfloat16", kv="bfloat16", out="bfloat16"),
            pages=PageLayout(block_size=5, permuted=True, shared_prefix=1, spare_blocks=2, extra_columns=1),
            softmax_scale=24**-0.5,
            window=4,
            softcap=30.0,
            alibi=AlibiRecipe(),
            qq_bias=QQBiasRecipe(extra_rows=1, extra_columns=-1, row_padding=3, scale=2.0),
            sinks=SinkRecipe(level=1.0, dtype="float16"),
            scores=NeedleScores(place="boundary"),
            values=PositionValues(),
            strides=Strides(1, 2, 3, 4, "blocks_first", 5, 6),
            padded_tokens=2,
            poison=PoisonRecipe(keys="huge", values="negative_inf", table="huge", out=1),
            seed=2**53 - 1,
        ),
        "6ac1dabcd3108b00",
    ),
    "fp8_cache": (
        AttentionCase(
            sequences=BATCH,
            heads=HeadLayout(3, 1, 40),
            dtypes=DTypes(q="float16", kv="float8_e4m3fn", out="float8_e4m3fn"),
            scales=Scales(k=0.3, v=1.7, out=11.0),
            pages=PageLayout(block_size=3, permuted=True, repeated=True),
            softmax_scale=-0.1,
            alibi=AlibiRecipe(kind="arbitrary", scale=0.5),
            qq_bias=QQBiasRecipe(kind="tree"),
            scores=OutlierScores(),
            values=OutlierValues(),
            overrides=(Override("v", 2, 30, 1, 7, 448.0), Override("q", 0, 1, 2, 3, -2.0)),
            strides=Strides(cache="heads_first", cache_slot=3),
            seed=77,
        ),
        "1f85e4190025a248",
    ),
    "fp8_queries": (
        AttentionCase(
            sequences=BATCH,
            heads=HeadLayout(1, 5, 17),
            dtypes=DTypes(q="float8_e5m2", kv="float8_e5m2", out="float16"),
            scales=Scales(q=2.0, k=3.0, v=0.125),
            scores=LevelScores(level=-110.0),
            values=DenormalValues(),
            strides=Strides(cache="kv_first"),
            seed=3,
        ),
        "0b17aa5c6bbfb6fe",
    ),
    "ramp": (
        AttentionCase(
            sequences=(Sequence(2, 300),),
            heads=HeadLayout(2, 2, 8),
            scores=RampScores(step=-0.3),
            values=IntegerValues(),
            alibi=AlibiRecipe(kind="negative"),
            seed=4,
        ),
        "a2b892a8cb213ed5",
    ),
    "random_needles": (
        AttentionCase(
            sequences=BATCH,
            scores=NeedleScores(place="random"),
            values=OneHotValues(),
            window=3,
            sinks=SinkRecipe(level=-2.0, spread=3.0, dtype="bfloat16"),
            seed=5,
        ),
        "f0089e0aeeb5d415",
    ),
    "denormals": (
        AttentionCase(sequences=BATCH, scores=DenormalScores(), values=ConstantValues(0.1), seed=6),
        "6c94034216365f50",
    ),
    "uniform": (
        AttentionCase(sequences=BATCH, scores=UniformScores(), alibi=AlibiRecipe("zero"), seed=7),
        "aaa3688aa5bba56e",
    ),
    "wide_normal": (
        AttentionCase(sequences=BATCH, scores=NormalScores(spread=4.0), softmax_scale=0.1),
        "ee8992d082c14df2",
    ),
}
"""Every recipe once. A changed digest changes what saved counterexamples hold: raise ``counterexample.SCHEMA``."""

PRINT_DIGESTS = """
import sys, msgspec
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.tensors import digest_of, materialise
for line in sys.stdin:
    print(digest_of(materialise(msgspec.json.decode(line, type=AttentionCase))))
"""


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_digest(name: str) -> None:
    case, digest = GOLDEN[name]
    assert digest_of(materialise(case)) == digest


def test_digests_are_the_same_in_a_fresh_process() -> None:
    texts = "\n".join(msgspec.json.encode(case).decode() for case, _ in GOLDEN.values())
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-c", PRINT_DIGESTS]
    printed = subprocess.run(command, input=texts, env=environment, check=True, capture_output=True, text=True).stdout
    assert printed.split() == [digest for _, digest in GOLDEN.values()]


@QUIET
@given(cases(Domain()))
def test_json_round_trip_keeps_the_digest(case: AttentionCase) -> None:
    again = msgspec.json.decode(msgspec.json.encode(case), type=AttentionCase)
    digest = digest_of(materialise(case))
    assert digest_of(materialise(again)) == digest
    assert len(digest) == 16
    assert int(digest, 16) >= 0


@pytest.mark.parametrize("name", [name for name in GOLDEN if name != "no_tokens"])
def test_another_seed_gives_another_digest(name: str) -> None:
    case, digest = GOLDEN[name]
    assert digest_of(materialise(replace(case, seed=case.seed ^ 1))) != digest


@pytest.mark.parametrize(
    "changes",
    [
        {"dtypes": DTypes(out="float16")},
        {"strides": Strides(out_head=1)},
        {"strides": Strides(cache="heads_first")},
        {"padded_tokens": 1},
        {"poison": PoisonRecipe(out=1)},
        {"poison": PoisonRecipe(values="inf")},
        {"sinks": SinkRecipe()},
        {"values": ConstantValues()},
        {"pages": PageLayout(block_size=8)},
    ],
)
def test_digest_depends_on_every_tensor(changes: dict[str, object]) -> None:
    case = AttentionCase(sequences=BATCH, heads=HeadLayout(2, 1, 4))
    assert digest_of(materialise(replace(case, **changes))) != digest_of(materialise(case))


def test_digest_ignores_launch_hints() -> None:
    case = AttentionCase(sequences=BATCH)
    hinted = replace(case, launch=LaunchHints(path="3d", num_segments=4))
    assert digest_of(materialise(hinted)) == digest_of(materialise(case))
