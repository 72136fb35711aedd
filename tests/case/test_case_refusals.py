"""Impossible cases raise errors that name field, value and bound, before any memory is allocated."""

from __future__ import annotations

import tracemalloc
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fuzz_attn.case import attention_case
from fuzz_attn.case.attention_case import MAX_TOTAL_ELEMENTS, AttentionCase
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.errors import CaseError
from fuzz_attn.inputs.storage import GUARD_BYTES, storage_bytes
from fuzz_attn.inputs.tensors import materialise

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
HUGE = 2**20

UNREADABLE = [
    ('{"sequences":[],"colour":1}', r"Object contains unknown field `colour`"),
    ('{"sequences":[],"heads":{"size":1}}', r"Object contains unknown field `size` - at `\$\.heads`"),
    ('{"sequences":[],"scores":{"type":"normal","level":1}}', r"unknown field `level` - at `\$\.scores`"),
    ("{}", r"Object missing required field `sequences`"),
    ('{"sequences":[{}]}', r"missing required field `query_len` - at `\$\.sequences\[0\]`"),
    ('{"sequences":[],"overrides":[{}]}', r"missing required field `tensor` - at `\$\.overrides\[0\]`"),
    ("[]", r"Expected `object`, got `array`"),
    ('{"sequences":{}}', r"Expected `array`, got `object` - at `\$\.sequences`"),
    ('{"sequences":[],"window":"4"}', r"Expected `int`, got `str` - at `\$\.window`"),
    ('{"sequences":[],"window":1.5}', r"Expected `int`, got `float` - at `\$\.window`"),
    ('{"sequences":[],"window":true}', r"Expected `int`, got `bool` - at `\$\.window`"),
    ('{"sequences":[],"softcap":null}', r"Expected `float`, got `null` - at `\$\.softcap`"),
    ('{"sequences":[],"pages":{"permuted":1}}', r"Expected `bool`, got `int` - at `\$\.pages\.permuted`"),
    ('{"sequences":[],"family":"split"}', r"Invalid enum value 'split' - at `\$\.family`"),
    ('{"sequences":[],"dtypes":{"q":"float64"}}', r"Invalid enum value 'float64' - at `\$\.dtypes\.q`"),
    ('{"sequences":[],"scores":{"type":"loud"}}', r"Invalid value 'loud' - at `\$\.scores\.type`"),
    ('{"sequences":[],"poison":{"out":2}}', r"Invalid enum value 2 - at `\$\.poison\.out`"),
    ('{"sequences":[],"strides":{"cache":"diagonal"}}', r"Invalid enum value 'diagonal' - at `\$\.strides\.cache`"),
    ('{"sequences":[{"query_len":-1}]}', r"Expected `int` >= 0 - at `\$\.sequences\[0\]\.query_len`"),
    ('{"sequences":[{"query_len":1048577}]}', r"Expected `int` <= 1048576 - at `\$\.sequences\[0\]\.query_len`"),
    ('{"sequences":[],"window":123456789012345678901234567890}', r"Expected `int` <= 2147483646 - at `\$\.window`"),
    ('{"sequences":[],"heads":{"head_size":0}}', r"Expected `int` >= 1 - at `\$\.heads\.head_size`"),
    ('{"sequences":[],"heads":{"head_size":1025}}', r"Expected `int` <= 1024 - at `\$\.heads\.head_size`"),
    ('{"sequences":[],"heads":{"num_kv_heads":0}}', r"Expected `int` >= 1 - at `\$\.heads\.num_kv_heads`"),
    ('{"sequences":[],"pages":{"block_size":0}}', r"Expected `int` >= 1 - at `\$\.pages\.block_size`"),
    ('{"sequences":[],"pages":{"block_size":4097}}', r"Expected `int` <= 4096 - at `\$\.pages\.block_size`"),
    ('{"sequences":[],"launch":{"tile_size":257}}', r"Expected `int` <= 256 - at `\$\.launch\.tile_size`"),
    ('{"sequences":[],"seed":9007199254740992}', r"Expected `int` <= 9007199254740991 - at `\$\.seed`"),
    ('{"sequences":[],"softmax_scale":1e999}', r"Number out of range - at `\$\.softmax_scale`"),
    ('{"sequences":[],"softmax_scale":-1e999}', r"Number out of range - at `\$\.softmax_scale`"),
    ('{"sequences":[],"scores":{"type":"ramp","step":1e31}}', r"Expected `float` <= 1e\+30 - at `\$\.scores\.step`"),
    ('{"sequences":[],"softmax_scale":NaN}', r"JSON is malformed"),
    ('{"sequences":[],"softmax_scale":Infinity}', r"JSON is malformed"),
    ('{"sequences":[],"softmax_scale":"NaN"}', r"Expected `float`, got `str` - at `\$\.softmax_scale`"),
    ('{"sequences":[],"softcap":-2}', r"softcap=-2.0 must be 0 or positive and finite, from 2\*\*-126 to 2\*\*126"),
    ('{"sequences":[],"scales":{"k":2}}', r"scales.k=2.0 must be 1 for the type 'float32', which is not fp8"),
]

NUMBERS: list[tuple[dict[str, Any], str]] = [
    ({"softmax_scale": float("nan")}, r"softmax_scale=nan must be 0 or finite, of a size from 2\*\*-126 to 2\*\*126"),
    ({"softmax_scale": float("-inf")}, r"softmax_scale=-inf must be 0 or finite"),
    ({"softmax_scale": 1e39}, r"softmax_scale=1e\+39 must be 0 or finite"),
    ({"softmax_scale": -1e-39}, r"softmax_scale=-1e-39 must be 0 or finite"),
    ({"softcap": float("nan")}, r"softcap=nan must be 0 or positive and finite"),
    ({"softcap": float("inf")}, r"softcap=inf must be 0 or positive and finite"),
    ({"softcap": 1e-50}, r"softcap=1e-50 must be 0 or positive and finite"),
    ({"softcap": -1.0}, r"softcap=-1.0 must be 0 or positive and finite"),
    ({"launch": LaunchHints(path="2d", num_segments=2)}, r"launch.num_segments=2 must be 0 for the path '2d'"),
    ({"launch": LaunchHints(num_segments=2)}, r"launch.num_segments=2 must be 0 for the path 'auto'"),
]

ONE_BYTE = DTypes(q="float8_e4m3fn", kv="float8_e4m3fn", out="float8_e4m3fn")
SCALES = [
    (-1e-39, "-1e-39"),
    (float("nan"), "nan"),
    (float("inf"), "inf"),
    (1e-39, "1e-39"),
    (1e39, r"1e\+39"),
]

SEQUENCE = (Sequence(1),)
LONG = (Sequence(HUGE, HUGE),)
GROUP = HeadLayout(num_queries_per_kv=64)
TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ("query", {"sequences": LONG, "heads": HeadLayout(1, 1, 65)}),
    ("query", {"sequences": (), "heads": HeadLayout(HUGE, HUGE, 1)}),
    ("query", {"sequences": (), "padded_tokens": HUGE, "heads": HeadLayout(1, 5, 16)}),
    ("query", {"sequences": (Sequence(65),), "strides": Strides(q_token=HUGE)}),
    ("query", {"sequences": SEQUENCE, "heads": HeadLayout(1, 65), "strides": Strides(q_head=HUGE)}),
    ("output", {"sequences": (Sequence(65),), "strides": Strides(out_token=HUGE)}),
    ("output", {"sequences": SEQUENCE, "heads": HeadLayout(1, 65), "strides": Strides(out_head=HUGE)}),
    (
        "the segments' partial output",
        {"sequences": (Sequence(2**13),), "heads": HeadLayout(1, 8, 9), "launch": LaunchHints("3d", 256)},
    ),
    ("a cache", {"sequences": (Sequence(1, HUGE),), "heads": HeadLayout(2, 1, 32)}),
    ("a cache", {"sequences": (Sequence(1, HUGE),) * 33, "heads": HeadLayout(1, 1, 2)}),
    ("a cache", {"sequences": SEQUENCE, "pages": PageLayout(spare_blocks=HUGE), "heads": HeadLayout(4)}),
    ("a cache", {"sequences": SEQUENCE * 500, "pages": PageLayout(block_size=4096), "heads": HeadLayout(1, 1, 64)}),
    ("a cache", {"sequences": SEQUENCE, "strides": Strides(cache_slot=HUGE), "heads": HeadLayout(4)}),
    ("a cache", {"sequences": (), "heads": HeadLayout(2**18 + 1)}),
    ("block_table", {"sequences": SEQUENCE * 65, "pages": PageLayout(extra_columns=HUGE)}),
    ("block_table", {"sequences": SEQUENCE * 65, "strides": Strides(block_table=HUGE)}),
    (
        "block_table",
        {"sequences": (Sequence(1, 2**19), *SEQUENCE * 200), "pages": PageLayout(block_size=1)},
    ),
    ("qq_bias", {"sequences": (Sequence(2**13 + 1),), "qq_bias": QQBiasRecipe()}),
    ("qq_bias", {"sequences": (Sequence(2**13 + 1),), "qq_bias": QQBiasRecipe("tree", extra_columns=-HUGE)}),
    ("qq_bias", {"sequences": (Sequence(65),), "qq_bias": QQBiasRecipe(extra_rows=HUGE)}),
    ("qq_bias", {"sequences": (Sequence(65),), "qq_bias": QQBiasRecipe(extra_columns=HUGE)}),
    ("qq_bias", {"sequences": (Sequence(65),), "qq_bias": QQBiasRecipe(row_padding=HUGE)}),
    ("qq_bias", {"sequences": (), "qq_bias": QQBiasRecipe(extra_rows=HUGE, row_padding=HUGE)}),
]
"""One case for each field that sizes a tensor; every number is within the bounds of its own field."""


@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_unreadable_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=message):
        msgspec.json.decode(text, type=AttentionCase)


@pytest.mark.parametrize(("changes", "message"), NUMBERS)
def test_contradiction_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=f"^{message}"):
        AttentionCase(sequences=(), **changes)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_scales_of_inputs_may_be_0_or_negative(name: str, scale: float) -> None:
    scales = msgspec.structs.replace(Scales(), **{name: scale})
    assert AttentionCase(sequences=(), dtypes=ONE_BYTE, scales=scales).scales == scales


def test_an_output_scale_of_0_is_refused() -> None:
    with pytest.raises(CaseError, match=r"^scales\.out=0\.0 must be finite, of a size from"):
        AttentionCase(sequences=(), dtypes=ONE_BYTE, scales=Scales(out=0.0))


@pytest.mark.parametrize("kind", ["tree", "diagonal"])
@pytest.mark.parametrize("order", ["one_row", "one_column"])
def test_a_mask_that_hides_own_tokens_is_refused(kind: Any, order: Any) -> None:
    with pytest.raises(
        CaseError, match=rf"^qq_bias\.order='{order}' must be 'rows' or 'columns' for the kind '{kind}'$"
    ):
        AttentionCase(sequences=(), qq_bias=QQBiasRecipe(kind, order=order))


@pytest.mark.parametrize("name", ["q", "k", "v", "out"])
@pytest.mark.parametrize(("scale", "text"), SCALES)
def test_scale_that_float32_cannot_invert_is_refused(name: str, scale: float, text: str) -> None:
    zero = "" if name == "out" else "0 or "
    message = rf"^scales.{name}={text} must be {zero}finite, of a size from 2\*\*-126 to 2\*\*126$"
    with pytest.raises(CaseError, match=message):
        AttentionCase(sequences=(), dtypes=ONE_BYTE, scales=msgspec.structs.replace(Scales(), **{name: scale}))


@pytest.mark.parametrize(("name", "dtype"), [("q", "float16"), ("k", "float16"), ("v", "float16"), ("out", "bfloat16")])
def test_scale_of_a_wide_type_is_refused(name: str, dtype: DTypeName) -> None:
    dtypes = DTypes(q="float16", kv="float16", out="bfloat16")
    with pytest.raises(CaseError, match=rf"^scales.{name}=2.0 must be 1 for the type '{dtype}', which is not fp8$"):
        AttentionCase(sequences=(), dtypes=dtypes, scales=msgspec.structs.replace(Scales(), **{name: 2.0}))


@pytest.mark.parametrize(
    ("q", "kv"),
    [("float32", "float16"), ("float16", "bfloat16"), ("float8_e4m3fn", "float16"), ("float8_e5m2", "float32")],
)
def test_cache_of_another_wide_type_is_refused(q: DTypeName, kv: DTypeName) -> None:
    with pytest.raises(CaseError, match=rf"^dtypes.kv='{kv}' must be an fp8 type or equal to dtypes.q='{q}'$"):
        AttentionCase(sequences=(), dtypes=DTypes(q=q, kv=kv))


@pytest.mark.parametrize(("name", "fields"), TOO_LARGE)
def test_huge_sizes_are_refused_before_memory_is_taken(name: str, fields: dict[str, Any]) -> None:
    text = msgspec.json.encode({key: msgspec.to_builtins(value) for key, value in fields.items()})
    tracemalloc.start()
    try:
        with pytest.raises(
            msgspec.ValidationError,
            match=rf"^{name} of the case would hold \d+ elements, more than {MAX_TOTAL_ELEMENTS}",
        ):
            msgspec.json.decode(text, type=AttentionCase)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


SIZES = st.sampled_from((0,) * 12 + (1, 2, 7, 31, 200))
POSITIVE = st.sampled_from((1,) * 6 + (2, 3, 7, 40))

CACHES: st.SearchStrategy[Literal["separate", "kv_first", "blocks_first", "heads_first"]] = st.sampled_from(
    ("separate", "kv_first", "blocks_first", "heads_first")
)


@st.composite
def sized_cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the fields of a case, with sizes up to ones that are too large."""
    three = draw(st.booleans())
    return {
        "sequences": tuple(draw(st.lists(st.builds(Sequence, query_len=SIZES, context_len=SIZES), max_size=4))),
        "heads": HeadLayout(draw(POSITIVE), draw(POSITIVE), draw(POSITIVE)),
        "pages": PageLayout(
            block_size=draw(POSITIVE), spare_blocks=draw(SIZES), extra_columns=draw(SIZES), shared_prefix=draw(SIZES)
        ),
        "strides": Strides(
            q_token=draw(SIZES),
            q_head=draw(SIZES),
            out_token=draw(SIZES),
            out_head=draw(SIZES),
            cache=draw(CACHES),
            cache_slot=draw(SIZES),
            block_table=draw(SIZES),
        ),
        "padded_tokens": draw(SIZES),
        "qq_bias": draw(
            st.none()
            | st.builds(
                QQBiasRecipe,
                kind=st.sampled_from(("dense", "tree", "zero")),
                extra_rows=SIZES,
                extra_columns=SIZES | SIZES.map(lambda size: -size),
                row_padding=SIZES,
            )
        ),
        "alibi": draw(st.none() | st.just(AlibiRecipe())),
        "sinks": draw(st.none() | st.just(SinkRecipe())),
        "launch": LaunchHints("3d", draw(st.integers(0, 256))) if three else LaunchHints(),
    }


@QUIET
@given(sized_cases())
def test_no_tensor_of_an_accepted_case_is_larger_than_the_limit(fields: dict[str, Any]) -> None:
    limit = 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_case, "MAX_TOTAL_ELEMENTS", limit)
        try:
            case = AttentionCase(**fields)
        except CaseError:
            assume(False)
    tensors = materialise(case)
    interleaved = case.strides.cache in ("kv_first", "blocks_first")
    for name, tensor in (*tensors.inputs(), ("output", tensors.output)):
        elements = (storage_bytes(tensor).numel() - 2 * GUARD_BYTES) // tensor.element_size()
        both = 2 if interleaved and name.endswith("cache") else 1
        assert elements <= both * limit + 1, name  # query_start_loc has one element more than sequences


@pytest.mark.parametrize(
    ("batch", "fields", "message"),
    [
        ((Sequence(1, -1),), {}, r"family='unified' has no empty_decodes \(decodes of length 0\)"),
        ((Sequence(1, -1),), {"family": "paged", "filter_by_query_len": True}, "context_len=-1 .* must be 0 or more"),
        ((Sequence(0, -1),), {"family": "paged", "filter_by_query_len": True}, "context_len=-1 .* must be 0 or more"),
    ],
)
def test_a_length_of_zero_is_for_paged_decode_without_the_filter(
    batch: tuple[Sequence, ...], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CaseError, match=message):
        AttentionCase(batch, **fields)
    assert AttentionCase((Sequence(1, -1),), family="paged").answers == (False,)
