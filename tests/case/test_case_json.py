"""Cases as JSON: lossless, short and pinned, because saved counterexamples must keep their meaning for years."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case import attention_case, parts, recipes
from fuzz_attn.case.attention_case import AttentionCase, CompileKey, replace
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import CallForm, DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.plain import Plain
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    LevelScores,
    LogSumExp,
    NeedleScores,
    OutlierValues,
    Override,
    PoisonRecipe,
    QQBiasRecipe,
    SinkRecipe,
)
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
WIDE = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
ANY = st.sampled_from(
    (WIDE, *(Domain(family=family) for family in ("paged", "context", "chunked", "extend", "varlen")))
).flatmap(cases)
STRUCTS = sorted(
    {
        member
        for module in (attention_case, parts, recipes)
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, Plain) and not member.__name__.startswith("_")
    }
    - {Plain, CaseFields, recipes.Recipe},
    key=lambda struct: struct.__name__,
)

FULL = AttentionCase(
    sequences=(Sequence(query_len=3, context_len=5), Sequence(query_len=0)),
    family="unified",
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=3, head_size=24, value_size=20),
    dtypes=DTypes(q="bfloat16", kv="float8_e4m3fn", out="float8_e5m2"),
    pages=PageLayout(
        block_size=8, permuted=True, shared_prefix=1, repeated=True, spare_blocks=2, extra_columns=3, first_block=9
    ),
    softmax_scale=0.125,
    window=7,
    softcap=30.0,
    alibi=AlibiRecipe(kind="negative", scale=2.0, dtype="float16"),
    qq_bias=QQBiasRecipe(
        kind="tree", extra_rows=1, extra_columns=-2, row_padding=4, scale=0.5, dtype="float64", order="columns", step=2
    ),
    sinks=SinkRecipe(level=-4.0, spread=0.25, dtype="bfloat16"),
    scales=Scales(k=0.5, v=1.7, out=0.3),
    scores=NeedleScores(place="outside_left", strength=9.0),
    values=OutlierValues(factor=32.0),
    near_uniform=True,
    equal_heads=True,
    key_marks=True,
    overrides=(Override(tensor="v", sequence=1, position=2, head=1, column=4, value=-16.0),),
    strides=Strides(
        q_token=1,
        q_head=2,
        out_token=3,
        out_head=4,
        cache="blocks_first",
        cache_slot=5,
        block_table=6,
        new_token=7,
        new_head=8,
        value_slot=9,
        new_value_token=10,
        new_value_head=11,
        page_head=12,
        key_chunk=13,
        key_slot=14,
        value_dim=15,
        key_piece=2,
        far=("q_head", "block_table"),
    ),
    padded_tokens=2,
    poison=PoisonRecipe(keys="huge", values="negative_inf", table="zero", out=1),
    launch=LaunchHints("3d", 5, 32, 8, 2, 7, (("use_td", True), ("mode", "b"), ("chunk", None))),
    lse=LogSumExp("2", "heads", with_sinks=False, empty="inf"),
    seed=2**53 - 1,
    form=CallForm("scalar", 1, 2, False, 3, 4, 5),
    contract=ContractTrial("type", "seq_lens", "int64"),
)

GOLDEN = (
    '{"sequences":[{"query_len":3,"context_len":5},{"query_len":0}],'
    '"heads":{"num_kv_heads":2,"num_queries_per_kv":3,"head_size":24,"value_size":20},'
    '"dtypes":{"q":"bfloat16","kv":"float8_e4m3fn","out":"float8_e5m2"},'
    '"pages":{"block_size":8,"permuted":true,"shared_prefix":1,"repeated":true,"spare_blocks":2,"extra_columns":3,"first_block":9},'
    '"softmax_scale":0.125,"window":7,"softcap":30.0,'
    '"alibi":{"kind":"negative","scale":2.0,"dtype":"float16"},'
    '"qq_bias":{"kind":"tree","extra_rows":1,"extra_columns":-2,"row_padding":4,"scale":0.5,"dtype":"float64","order":"columns","step":2},'
    '"sinks":{"level":-4.0,"spread":0.25,"dtype":"bfloat16"},'
    '"scales":{"k":0.5,"v":1.7,"out":0.3},'
    '"scores":{"type":"needle","place":"outside_left","strength":9.0},'
    '"values":{"type":"outlier","factor":32.0},'
    '"near_uniform":true,"equal_heads":true,"key_marks":true,'
    '"overrides":[{"tensor":"v","sequence":1,"position":2,"head":1,"column":4,"value":-16.0}],'
    '"strides":{"q_token":1,"q_head":2,"out_token":3,"out_head":4,"cache":"blocks_first","cache_slot":5,"block_table":6,"new_token":7,"new_head":8,"value_slot":9,"new_value_token":10,"new_value_head":11,"page_head":12,"key_chunk":13,"key_slot":14,"value_dim":15,"key_piece":2,"far":["q_head","block_table"]},'
    '"padded_tokens":2,'
    '"poison":{"keys":"huge","values":"negative_inf","table":"zero","out":1},'
    '"launch":{"path":"3d","num_segments":5,"tile_size":32,"num_warps":8,"num_stages":2,"configuration":7,"arguments":[["use_td",true],["mode","b"],["chunk",null]]},'
    '"lse":{"base":"2","order":"heads","with_sinks":false,"empty":"inf"},'
    '"seed":9007199254740991,'
    '"form":{"scales":"scalar","window":1,"cache_name":2,"query_starts":false,"extra_table_rows":3,"extra_output_rows":4,"extra_new_rows":5},'
    '"contract":{"form":"type","role":"seq_lens","to":"int64"}}'
)

SPLIT = AttentionCase(
    sequences=(Sequence(query_len=3, context_len=5),),
    family="context",
    dtypes=DTypes(kv="float8_e5m2"),
    filter_by_query_len=True,
    uint8_cache=True,
    stale_cache=True,
)
SPLIT_GOLDEN = (
    '{"sequences":[{"query_len":3,"context_len":5}],"family":"context","dtypes":{"kv":"float8_e5m2"},'
    '"filter_by_query_len":true,"uint8_cache":true,"stale_cache":true}'
)
"""Schema version 2. A change here changes what saved files mean: raise ``SCHEMA``."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "AlibiRecipe": {"kind": "standard", "scale": 1.0, "dtype": "float32"},
    "AttentionCase": {
        "family": "unified",
        "heads": {"num_kv_heads": 1, "num_queries_per_kv": 1, "head_size": 16, "value_size": 0},
        "dtypes": {"q": "float32", "kv": "float32", "out": "float32"},
        "pages": {
            "block_size": 16,
            "permuted": False,
            "shared_prefix": 0,
            "repeated": False,
            "spare_blocks": 0,
            "extra_columns": 0,
            "first_block": 0,
        },
        "softmax_scale": 1.0,
        "window": 0,
        "mask": {"type": "causal"},
        "softcap": 0.0,
        "alibi": None,
        "qq_bias": None,
        "sinks": None,
        "scales": {"q": 1.0, "k": 1.0, "v": 1.0, "out": 1.0},
        "scores": {"type": "normal", "spread": 1.0},
        "values": {"type": "normal"},
        "near_uniform": False,
        "equal_heads": False,
        "key_marks": False,
        "overrides": [],
        "strides": {
            "q_token": 0,
            "q_head": 0,
            "out_token": 0,
            "out_head": 0,
            "cache": "separate",
            "cache_slot": 0,
            "block_table": 0,
            "new_token": 0,
            "new_head": 0,
            "value_slot": 0,
            "new_value_token": 0,
            "new_value_head": 0,
            "page_head": 0,
            "key_chunk": 0,
            "key_slot": 0,
            "value_dim": 0,
            "key_piece": 0,
            "far": [],
        },
        "padded_tokens": 0,
        "poison": {"keys": "nan", "values": "nan", "table": "one_past", "out": 0},
        "launch": {"path": "auto", "num_segments": 0, "tile_size": 0, "num_warps": 0, "num_stages": 0}
        | {"configuration": 0, "arguments": []},
        "filter_by_query_len": False,
        "uint8_cache": False,
        "stale_cache": False,
        "ragged_splits": False,
        "lse": None,
        "seed": 0,
        "form": {
            "scales": "vector",
            "window": 0,
            "cache_name": 0,
            "query_starts": True,
            "extra_table_rows": 0,
            "extra_output_rows": 0,
            "extra_new_rows": 0,
        },
        "contract": None,
    },
    "Causal": {"type": "causal"},
    "Chunks": {"type": "chunks", "size": 16},
    "ConstantValues": {"type": "constant", "value": 1.0},
    "Custom": {"type": "custom", "bits": "random", "causal": True, "empty_rows": False, "poisoned": False},
    "DenormalScores": {"type": "denormal"},
    "DenormalValues": {"type": "denormal"},
    "Full": {"type": "full"},
    "IntegerValues": {"type": "integer"},
    "LevelScores": {"type": "level", "level": -20.0, "jitter": 0.5},
    "LogSumExp": {"base": "e", "order": "tokens", "with_sinks": True, "empty": "-inf"},
    "Lookahead": {"type": "lookahead", "keys": 1},
    "NeedleScores": {"type": "needle", "place": "own", "strength": 8.0},
    "NormalScores": {"type": "normal", "spread": 1.0},
    "NormalValues": {"type": "normal"},
    "OneHotValues": {"type": "one_hot"},
    "OutlierScores": {"type": "outlier", "factor": 8.0},
    "OutlierValues": {"type": "outlier", "factor": 64.0},
    "Override": {"sequence": 0, "position": 0, "head": 0, "column": 0, "value": 0.0},
    "PositionValues": {"type": "position"},
    "HeavyScores": {"type": "heavy", "place": "tiles", "depth": 256.0},
    "QQBiasRecipe": {
        "kind": "dense",
        "extra_rows": 0,
        "extra_columns": 0,
        "row_padding": 0,
        "scale": 1.0,
        "dtype": "float32",
        "order": "rows",
        "step": 1,
    },
    "RampScores": {"type": "ramp", "step": 0.25},
    "Sequence": {"context_len": 0},
    "SinkRecipe": {"level": 0.0, "spread": 1.0, "dtype": "float32"},
    "TopLeft": {"type": "top_left"},
    "UniformScores": {"type": "uniform"},
}
"""What a field means that a file of schema version 2 leaves out."""

REQUIRED: dict[str, dict[str, Any]] = {
    "AttentionCase": {"sequences": []},
    "Override": {"tensor": "q"},
    "Sequence": {"query_len": 1},
}
PARTS = (
    "CallForm",
    "CompileKey",
    "DTypes",
    "HeadLayout",
    "LaunchHints",
    "PageLayout",
    "PoisonRecipe",
    "Scales",
    "Strides",
)
"""Pinned as parts of a case; no file holds the compile key."""


def decode(text: str | bytes) -> AttentionCase:
    return msgspec.json.decode(text, type=AttentionCase)


def spelled(value: object) -> Any:
    """Return the JSON of plain data with every default written out."""
    if isinstance(value, Plain):
        tag = {"type": value.__struct_config__.tag} if value.__struct_config__.tag else {}
        return tag | {name: spelled(part) for name, part in msgspec.structs.asdict(value).items()}
    return [spelled(part) for part in value] if isinstance(value, tuple) else value


@QUIET
@given(ANY)
def test_json_round_trip_is_lossless(case: AttentionCase) -> None:
    text = msgspec.json.encode(case)
    again = decode(text)
    assert again == case
    assert hash(again) == hash(case)
    assert msgspec.json.encode(again) == text


@QUIET
@given(cases(WIDE))
def test_json_with_every_default_written_out_is_the_same_case(case: AttentionCase) -> None:
    again = decode(msgspec.json.encode(spelled(case)))
    assert again == case
    assert msgspec.json.encode(again) == msgspec.json.encode(case)


@QUIET
@given(st.floats(-1e30, 1e30), st.floats(2.0**-126, 2.0**126), st.integers(0, 2**53 - 1))
def test_json_keeps_every_bit_of_numbers(value: float, scale: float, seed: int) -> None:
    override = Override(tensor="k", value=value)
    case = AttentionCase(sequences=(), softmax_scale=scale, softcap=scale, overrides=(override,), seed=seed)
    again = decode(msgspec.json.encode(case))
    assert (again.softmax_scale, again.softcap, again.seed) == (scale, scale, seed)
    assert again.overrides[0].value == value


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_defaults_are_pinned_and_omitted(struct: type[Plain]) -> None:
    name = struct.__name__
    required = REQUIRED.get(name, {})
    plainest = msgspec.convert(required, struct)
    tag = {"type": struct.__struct_config__.tag} if struct.__struct_config__.tag else {}
    assert msgspec.json.decode(msgspec.json.encode(plainest)) == tag | required
    if name in PARTS:
        assert name == "CompileKey" or spelled(plainest) in DEFAULTS["AttentionCase"].values()
    else:
        assert spelled(plainest) == required | DEFAULTS[name]


def test_case_without_features_is_short() -> None:
    case = AttentionCase(sequences=(Sequence(1),), softmax_scale=float("1"), scores=LevelScores(level=float("-20")))
    assert msgspec.json.encode(case) == b'{"sequences":[{"query_len":1}],"scores":{"type":"level"}}'


def test_golden_text_of_schema_version_2() -> None:
    assert msgspec.json.encode(FULL).decode() == GOLDEN
    assert decode(GOLDEN) == FULL
    assert msgspec.json.encode(SPLIT).decode() == SPLIT_GOLDEN
    assert decode(SPLIT_GOLDEN) == SPLIT


def test_golden_text_sets_every_field() -> None:
    # q's scale, the family, the mask and the features of split caches have only one legal value here.
    def unset(value: object, path: str) -> list[str]:
        if isinstance(value, tuple):
            return [name for part in value[:1] for name in unset(part, path)]
        if not isinstance(value, Plain):
            return []
        present = msgspec.to_builtins(value)
        absent = [f"{path}.{name}" for name in value.__struct_fields__ if name not in present]
        return absent + [name for field in value.__struct_fields__ for name in unset(getattr(value, field), field)]

    families = ["case.filter_by_query_len", "case.uint8_cache", "case.stale_cache"]
    assert unset(FULL, "case") == ["case.family", "case.mask", *families, "case.ragged_splits", "scales.q"]
    assert not set(families) & set(unset(SPLIT, "case"))
    ragged = AttentionCase((Sequence(1),), family="token_decode", ragged_splits=True)
    text = b'{"sequences":[{"query_len":1}],"family":"token_decode","ragged_splits":true}'
    assert msgspec.json.encode(ragged) == text


def test_replace_checks_like_a_new_case() -> None:
    assert replace(FULL, seed=3).seed == 3
    with pytest.raises(
        ValueError, match=r"^softcap=-1.0 must be 0 or positive and finite, from 2\*\*-126 to 2\*\*126$"
    ):
        replace(FULL, softcap=-1.0)


def test_equal_cases_make_equal_keys_and_texts() -> None:
    other = replace(FULL, seed=1, sequences=(Sequence(9),), softmax_scale=3.0, window=1, padded_tokens=0)
    assert other.compile_key == FULL.compile_key
    assert hash(other.compile_key) == hash(FULL.compile_key)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 0},
        {"softcap": 0.0},
        {"alibi": None},
        {"qq_bias": None},
        {"sinks": None},
        {"dtypes": DTypes(q="float16", kv="float8_e4m3fn", out="float8_e5m2")},
        {"heads": HeadLayout(2, 3, 25)},
        {"heads": HeadLayout(2, 4, 24)},
        {"pages": PageLayout(block_size=9)},
        {"launch": msgspec.structs.replace(FULL.launch, num_segments=6)},
        {"launch": msgspec.structs.replace(FULL.launch, tile_size=16)},
        {"launch": msgspec.structs.replace(FULL.launch, num_warps=4)},
        {"launch": msgspec.structs.replace(FULL.launch, num_stages=3)},
        {"launch": msgspec.structs.replace(FULL.launch, configuration=8)},
        {"launch": msgspec.structs.replace(FULL.launch, arguments=(("use_td", True),))},
        {"launch": LaunchHints()},
    ],
)
def test_fields_that_recompile_change_the_key(changes: dict[str, Any]) -> None:
    assert replace(FULL, **changes).compile_key != FULL.compile_key


@QUIET
@given(cases(WIDE))
def test_key_holds_the_compiled_features(case: AttentionCase) -> None:
    key = case.compile_key
    names = ("window", "softcap", "alibi", "qq_bias", "sinks", "filter_by_query_len", "lse")
    assert key.compiled == tuple(name for name in names if getattr(case, name))
    assert isinstance(key, CompileKey)
    assert (key.head_size, key.block_size) == (case.heads.head_size, case.pages.block_size)


def test_lengths_of_a_batch() -> None:
    case = AttentionCase(sequences=(Sequence(3, 5), Sequence(0, 9), Sequence(4)))
    assert (case.num_tokens, case.max_query_len, case.max_seq_len, case.total_keys) == (7, 4, 9, 21)
    empty = AttentionCase(sequences=())
    assert (empty.num_tokens, empty.max_query_len, empty.max_seq_len, empty.total_keys) == (0, 0, 0, 0)
