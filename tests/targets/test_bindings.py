"""Bindings: which family a signature belongs to, which features it promises, and which arguments a call passes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz_attn.binding.binding import binding_of
from fuzz_attn.case.aspects import FEATURES_OF, UNPUBLISHED_FEATURES
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import CallForm, DTypeName, DTypes, HeadLayout, LaunchHints, Scales, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.errors import TargetError
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.targets.loading import as_target

SCRATCH_NAMES = [
    "seq_threshold_3D",
    "num_par_softmax_segments",
    "softmax_segm_output",
    "softmax_segm_max",
    "softmax_segm_expsum",
]
DERIVED = FEATURES_OF["unified"] - UNPUBLISHED_FEATURES - {"fp8_q"}
"""The features that a signature can promise; a target has to declare the others."""


def with_signature(parameters: str) -> Callable[..., None]:
    """Return a function with the given parameters that does nothing."""
    names: dict[str, Any] = {}
    exec(f"def attend({parameters}): pass", names)
    attend: Callable[..., None] = names["attend"]
    return attend


def arguments_of(parameters: str, tensors: AttentionTensors, family: Family | None = None) -> dict[str, Any]:
    """Return the arguments of a call of a function with the given parameters."""
    return as_target(with_signature(parameters), "some", family).call_on(tensors).arguments


LEAST = "q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table"
PUBLISHED = (
    "q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size, "
    "block_table, softcap, q_descale, k_descale, v_descale, "
)


@pytest.mark.parametrize(
    ("parameters", "left_out"),
    [
        (PUBLISHED + "alibi_slopes, qq_bias, sinks, output_scale", set()),
        (PUBLISHED + "alibi_slopes, qq_bias, output_scale", {"sinks"}),
        (PUBLISHED + "alibi_slopes", {"qq_bias", "sinks", "fp8_out"}),
        (LEAST, {"window", "softcap", "alibi", "qq_bias", "sinks", "fp8_kv", "fp8_out"}),
        (LEAST + ", k_descale", {"window", "softcap", "alibi", "qq_bias", "sinks", "fp8_kv", "fp8_out"}),
        (LEAST + ", *, sinks=None", {"window", "softcap", "alibi", "qq_bias", "fp8_kv", "fp8_out"}),
        ("**given", set()),
        ("*positional, **given", set()),
    ],
)
def test_domain_lacks_features_without_a_parameter(parameters: str, left_out: set[str]) -> None:
    domain = as_target(with_signature(parameters), "some").domain
    assert domain.features == DERIVED - left_out
    assert domain.paths == ("auto",)
    assert not domain.fp8_q_scales


def test_a_binding_limits_the_domain() -> None:
    limits = {
        "dtypes": ["bfloat16"],
        "cache_dtypes": ["bfloat16", "float8_e4m3fn"],
        "output_dtypes": ["bfloat16"],
        "head_sizes": [64, 64, 128],
        "excluded": [["alibi", "window"], ["fp8_kv", "sinks"], ["qq_bias"]],
        "alibi_kinds": ["standard"],
    }
    stated = binding_of({"domain": limits})
    target = as_target(with_signature(PUBLISHED + "alibi_slopes, qq_bias, sinks, output_scale"), "some", None, stated)
    domain = target.domain
    assert domain.dtypes == domain.output_dtypes == ("bfloat16",)
    assert domain.cache_dtypes == ("bfloat16", "float8_e4m3fn")
    assert domain.head_sizes == (64, 64, 128)
    assert domain.features == DERIVED - {"qq_bias"}
    assert domain.excluded == (frozenset({"alibi", "window"}), frozenset({"fp8_kv", "sinks"}))
    assert domain.alibi_kinds == ("standard",)
    assert target.match.published


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"segment": [3]}, "target='some' domain: Object contains unknown field `segment`"),
        ({"segments": [0]}, r"target='some' domain.segments=\(0,\) must be ascending sizes from 1 to 256"),
        ({"family": ["paged"]}, "target='some' domain.family must be stated as the family of the binding"),
        ({"features": ["sinks"]}, "target='some' domain.features names sinks, which its signature lacks"),
        ({"paths": ["3d"]}, r"target='some' domain.paths=\('3d',\) needs a signature with num_segments"),
        ({"excluded": [["sink"]]}, "target='some' domain: Invalid enum value 'sink'"),
    ],
)
def test_limits_that_are_no_domain_are_one_line(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message) as raised:
        as_target(with_signature(PUBLISHED), "some", None, binding_of({"domain": limits}))
    assert "\n" not in str(raised.value)


def test_scratch_arguments_choose_the_path(case: AttentionCase) -> None:
    signature = PUBLISHED + f"{', '.join(SCRATCH_NAMES)}, alibi_slopes=None"
    assert as_target(with_signature(signature), "some").domain.paths == ("2d", "3d")
    on_2d = arguments_of(signature, materialise(replace(case, launch=LaunchHints(path="2d"))))
    assert [on_2d[name] for name in SCRATCH_NAMES] == [None] * 5
    on_3d = arguments_of(signature, materialise(replace(case, launch=LaunchHints(path="3d", num_segments=3))))
    threshold, segments, output, largest, total = (on_3d[name] for name in SCRATCH_NAMES)
    assert (threshold >= len(case.sequences), segments) == (True, 3)
    assert output.shape == (6, 4, 3, 8)
    assert largest.shape == total.shape == (6, 4, 3)
    assert {output.dtype, largest.dtype, total.dtype} == {torch.float32}


def test_only_arguments_of_the_signature_are_passed(case: AttentionCase) -> None:
    tensors = materialise(case)
    assert set(arguments_of(LEAST, tensors)) == set(LEAST.split(", "))
    to_anything = set(arguments_of("**given", tensors))
    assert to_anything == set((PUBLISHED + "alibi_slopes, qq_bias, sinks, output_scale").split(", "))


def test_arguments_of_the_unified_family() -> None:
    case = AttentionCase(
        sequences=(Sequence(2, 3), Sequence(1)),
        heads=HeadLayout(1, 2, 8),
        dtypes=DTypes(q="bfloat16", kv="float8_e5m2", out="float8_e4m3fn"),
        scales=Scales(k=0.5, v=2.0, out=4.0),
        window=4,
        softcap=2.5,
        alibi=AlibiRecipe(),
        qq_bias=QQBiasRecipe(),
        sinks=SinkRecipe(),
    )
    arguments = arguments_of("kv_quant_mode, **given", materialise(case))
    assert arguments["cu_seqlens_q"].tolist() == [0, 2, 3]
    assert arguments["seqused_k"].tolist() == [5, 1]
    assert (arguments["max_seqlen_q"], arguments["max_seqlen_k"]) == (2, 5)
    assert (arguments["window_size"], arguments["softcap"], arguments["causal"]) == ((3, 0), 2.5, True)
    assert arguments["q_descale"] is None
    assert [arguments[name].tolist() for name in ("k_descale", "v_descale", "output_scale")] == [[0.5], [2.0], [4.0]]
    assert [arguments[name].shape for name in ("alibi_slopes", "sinks")] == [(2,), (2,)]
    assert arguments["kv_quant_mode"] == 1
    plain = replace(case, dtypes=DTypes(), scales=Scales(), window=0, alibi=None)
    arguments = arguments_of("kv_quant_mode, **given", materialise(plain))
    assert arguments["window_size"] == (-1, -1)
    assert arguments["kv_quant_mode"] == 0
    assert [arguments[name] for name in ("k_descale", "v_descale", "output_scale", "alibi_slopes")] == [None] * 4


@pytest.mark.parametrize(("scale", "given"), [(1.0, None), (0.5, [0.5])])
def test_scale_of_q_is_passed_unless_it_is_one(scale: float, given: list[float] | None) -> None:
    dtypes = DTypes(q="float8_e4m3fn", kv="float8_e4m3fn", out="bfloat16")
    tensors = materialise(AttentionCase(sequences=(Sequence(1),), dtypes=dtypes, scales=Scales(q=scale)))
    passed = arguments_of("**given", tensors)["q_descale"]
    assert (passed if passed is None else passed.tolist()) == given


PAGED = "query, output, key_cache, value_cache, block_table, seq_lens"
CONTEXT = "q, k, v, o, k_cache, v_cache, b_loc, b_start_loc, b_seq_len"
CHUNKED = "query, key, value, output, key_cache, value_cache, block_table, query_start_loc, seq_lens"
SPLIT = ", kv_cache_dtype=None, k_scale=None, v_scale=None, alibi_slopes=None, sliding_window=None"
SPLIT += ", sm_scale=None, sinks=None"


@pytest.mark.parametrize(
    ("parameters", "family", "left_out"),
    [
        (PAGED + SPLIT + ", query_start_loc=None, filter_by_query_len=False, output_scale=None", "paged", set()),
        (PAGED + SPLIT, "paged", {"filter_by_query_len", "fp8_out", "padded_tokens"}),
        (
            PAGED,
            "paged",
            {"filter_by_query_len", "fp8_out", "window", "alibi", "sinks", "fp8_kv", "uint8_cache", "padded_tokens"},
        ),
        (CONTEXT + SPLIT + ", max_seq_len=0, max_input_len=0, skip_decode=False, fp8_out_scale=None", "context", set()),
        (CONTEXT + SPLIT + ", max_seq_len=0, max_input_len=0", "context", {"filter_by_query_len", "fp8_out"}),
        (CHUNKED + SPLIT + ", max_seq_len=0, max_query_len=0, output_scale=None", "chunked", set()),
        (CHUNKED + SPLIT + ", max_seq_len=0, max_query_len=0, is_block_table_ptr=False", "chunked", {"fp8_out"}),
    ],
)
def test_split_families_are_recognised_by_their_signatures(parameters: str, family: Family, left_out: set[str]) -> None:
    target = as_target(with_signature(parameters), "some")
    assert target.family == family
    assert target.domain.features == FEATURES_OF[family] - UNPUBLISHED_FEATURES - left_out


def test_arguments_of_the_split_families() -> None:
    case = AttentionCase(
        sequences=(Sequence(2, 3), Sequence(1)),
        family="context",
        heads=HeadLayout(1, 2, 16),
        dtypes=DTypes(q="bfloat16", kv="float8_e5m2", out="float8_e4m3fn"),
        scales=Scales(k=0.5, v=2.0, out=4.0),
        window=4,
        alibi=AlibiRecipe(),
        sinks=SinkRecipe(),
        filter_by_query_len=True,
        uint8_cache=True,
    )
    arguments = arguments_of("**given", materialise(case), "context")
    assert arguments["b_start_loc"].tolist() == [0, 2, 3]
    assert arguments["b_seq_len"].tolist() == [5, 1]
    assert (arguments["max_input_len"], arguments["max_seq_len"]) == (2, 5)
    assert (arguments["sliding_window"], arguments["sm_scale"], arguments["skip_decode"]) == (4, 1.0, True)
    assert arguments["kv_cache_dtype"] == "fp8_e5m2"
    assert [arguments[name].tolist() for name in ("k_scale", "v_scale", "fp8_out_scale")] == [[0.5], [2.0], [4.0]]
    assert arguments["k"].shape == arguments["v"].shape == (3, 1, 16)
    plain = replace(
        case, family="paged", sequences=(Sequence(1, 3),), dtypes=DTypes(), scales=Scales(), window=0, alibi=None,
        filter_by_query_len=False, uint8_cache=False,
    )  # fmt: skip
    arguments = arguments_of("**given", materialise(plain), "paged")
    assert (arguments["sliding_window"], arguments["alibi_slopes"], arguments["output_scale"]) == (None, None, None)
    assert (arguments["kv_cache_dtype"], arguments["filter_by_query_len"]) == ("auto", False)
    assert [arguments[name].tolist() for name in ("k_scale", "v_scale")] == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("parameters", "scale", "given"),
    [
        (PAGED + SPLIT, 0.25, False),
        (PAGED + SPLIT, 0.5, True),
        (PAGED + ", *, sm_scale", 0.25, True),
        ("**given", 0.25, True),
    ],
)
def test_default_softmax_scale_is_left_out(parameters: str, scale: float, given: bool) -> None:
    case = AttentionCase((Sequence(1),), family="paged", softmax_scale=scale)
    arguments = arguments_of(parameters, materialise(case), "paged")
    assert arguments.get("sm_scale") == (scale if given else None)


@pytest.mark.parametrize(
    ("kv", "as_bytes", "word"),
    [
        ("float8_e4m3fn", True, "fp8"),
        ("float8_e4m3fn", False, "fp8_e4m3"),
        ("float8_e5m2", True, "fp8_e5m2"),
        ("float32", False, "auto"),
    ],
)
def test_cache_dtype_has_its_serving_name(kv: DTypeName, as_bytes: bool, word: str) -> None:
    case = AttentionCase((Sequence(1),), family="chunked", dtypes=DTypes(kv=kv), uint8_cache=as_bytes)
    assert arguments_of("**given", materialise(case), "chunked")["kv_cache_dtype"] == word


FP8 = AttentionCase(
    (Sequence(1, 3), Sequence(1)),
    heads=HeadLayout(2, 1, 16),
    dtypes=DTypes(q="bfloat16", kv="float8_e4m3fn", out="bfloat16"),
    scales=Scales(k=1.0, v=0.5),
)


def in_form(case: AttentionCase, **form: Any) -> dict[str, Any]:
    """Return the arguments of a call of the case's family with the arguments in some form."""
    return arguments_of("**given", materialise(replace(case, form=CallForm(**form))), case.family)


@pytest.mark.parametrize(
    ("form", "window", "given"),
    [(0, 0, (-1, -1)), (1, 0, (-1, 0)), (2, 0, (-1, -1)), (0, 3, (2, 0)), (1, 3, (2, -1)), (2, 3, (2, 0))],
)
def test_right_side_of_a_window_size_in_both_forms(form: int, window: int, given: tuple[int, int]) -> None:
    assert in_form(replace(FP8, window=window), window=form)["window_size"] == given


@pytest.mark.parametrize(
    ("form", "window", "given"), [(0, 0, None), (1, 0, 0), (2, 0, -1), (0, 3, 3), (1, 3, 3), (2, 3, 3)]
)
def test_no_window_in_three_forms(form: int, window: int, given: int | None) -> None:
    assert in_form(replace(FP8, family="paged", window=window), window=form)["sliding_window"] == given


def test_scales_in_each_form() -> None:
    assert [in_form(FP8)[name].tolist() for name in ("k_descale", "v_descale")] == [[1.0], [0.5]]
    assert [in_form(FP8, scales="scalar")[name].shape for name in ("k_descale", "v_descale")] == [(), ()]
    expanded = in_form(FP8, scales="expanded")["v_descale"]
    assert (expanded.shape, expanded.stride(), expanded.unique().tolist()) == ((2, 2), (0, 0), [0.5])
    omitted = in_form(FP8, scales="omitted")
    assert (omitted["k_descale"], omitted["v_descale"].tolist()) == (None, [0.5])


def test_names_of_cache_types_and_starts_of_queries() -> None:
    paged = replace(FP8, family="paged")
    assert [in_form(paged, cache_name=name)["kv_cache_dtype"] for name in range(3)] == ["fp8_e4m3", "fp8", "auto"]
    as_bytes = replace(paged, uint8_cache=True)
    assert [in_form(as_bytes, cache_name=name)["kv_cache_dtype"] for name in range(3)] == ["fp8", "fp8_e4m3", "fp8"]
    assert in_form(paged, query_starts=False)["query_start_loc"] is None
    assert in_form(replace(FP8, family="context"), query_starts=False)["b_start_loc"].tolist() == [0, 1, 2]
