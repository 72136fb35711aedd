"""Targets: how they are named and found, what their signature promises, and what is said of one that does not fit."""

import functools
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn import fuzz
from fuzz_attn.api import MARKER, spec_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.dtypes import DTypeName
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, Scales, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.errors import FuzzAttnError, TargetError
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.targets import target as targets
from fuzz_attn.targets import torch_defaults
from fuzz_attn.targets.bindings import BINDINGS
from fuzz_attn.targets.bindings.binding import signature_of
from fuzz_attn.targets.bindings.unified import _SCRATCH, UNIFIED
from fuzz_attn.targets.target import (
    BUILT_IN_NAMES,
    ENTRY_POINT_GROUP,
    Target,
    as_target,
    load_target,
    slug_of,
    target_names,
)

FOLDER = Path(__file__).parents[1] / "sample_targets"
TORCH, MISBEHAVING = FOLDER / "torch_attention.py", FOLDER / "misbehaving.py"

DERIVED = FAMILIES["unified"].features - {"fp8_q"}
"""What a signature can promise; fp8 queries have to be declared."""

BAD_SPECS = {
    "nonsense": "target='nonsense' must be module:function, path.py:function or one of: unified",
    "": "target='' must be module:function, path.py:function or one of: unified",
    "missing.py:attend": "target file 'missing.py' does not exist",
    "no_such_module:attend": (
        "target='no_such_module:attend' does not import: ModuleNotFoundError: No module named 'no_such_module'"
    ),
    ":attend": "target=':attend' does not import: ValueError: Empty module name",
    "math:": "target='math:': math has no ''",
    "math:attend": "target='math:attend': math has no 'attend'",
    "math:pi": "target='math:pi' must be callable, and is a float",
    "math:hypot": "target='math:hypot' has no signature that could be read: no signature found for builtin",
    f"{FOLDER / 'broken_import.py'}:attend": "does not import: RuntimeError: no GPU here",
    f"{MISBEHAVING}:not_callable": "must be callable, and is a int",
    f"{MISBEHAVING}:of_another_family": (
        "has a signature that fits no family (unified: lacks block_table, cu_seqlens_q, "
    ),
    f"{MISBEHAVING}:positional_only": (
        "has a signature that fits no family (unified: requires k, q, v by position alone; "
    ),
    f"{MISBEHAVING}:with_a_surprise": (
        "has a signature that fits no family (unified: requires workspace, which the family does not know; "
    ),
}


def with_signature(parameters: str) -> Callable[..., None]:
    """Return a function with the given parameters that does nothing."""
    names: dict[str, Any] = {}
    exec(f"def attend({parameters}): pass", names)
    attend: Callable[..., None] = names["attend"]
    return attend


LEAST = "q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table"
PUBLISHED = (
    "q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size, "
    "block_table, softcap, q_descale, k_descale, v_descale, "
)


@pytest.mark.parametrize("spec", BAD_SPECS)
def test_a_bad_specification_is_told_in_one_line(spec: str) -> None:
    with pytest.raises(TargetError) as raised:
        load_target(spec)
    assert BAD_SPECS[spec] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_and_what_it_imports_beside_it_are_found() -> None:
    target = load_target(f"{MISBEHAVING}:without_sinks")
    assert target.name == f"{MISBEHAVING}:without_sinks"
    assert target.family == "unified"


def test_a_file_is_found_relative_to_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    assert load_target("torch_attention.py:unified_attention").slug == "torch_attention.py-unified_attention"


def test_a_module_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attention_of_a_module.py").write_text(
        f"class Holder:\n    @staticmethod\n    def attend({LEAST}): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_target("attention_of_a_module:Holder.attend").family == "unified"


def test_two_files_of_the_same_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"def attend({LEAST}):\n    return {folder!r}\n")
    found = [load_target(f"{tmp_path / folder / 'same.py'}:attend") for folder in ("one", "two")]
    assert [target.call(*range(8)) for target in found] == ["one", "two"]


def test_defaults_of_torch_hold_for_their_target_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_defaults, "_of_targets", None)
    path = tmp_path / "modern.py"
    path.write_text(
        "import torch\ntorch.set_default_device('meta')\ntorch.set_default_dtype(torch.float16)\nSEEN = []\n"
        "def attend(**given):\n    SEEN.append((torch.zeros(1), given))\n"
    )
    target = load_target(f"{path}:attend", "unified")
    target.run(materialise(AttentionCase((Sequence(1),))))
    assert torch_defaults.current() == (torch.float32, torch.device("cpu"))
    ((made, given),) = target.call.__globals__["SEEN"]
    assert (made.dtype, made.device.type) == (torch.float16, "meta")
    assert {value.device.type for value in given.values() if isinstance(value, torch.Tensor)} == {"cpu"}


def test_a_target_object_brings_its_own_domain(tmp_path: Path) -> None:
    path = tmp_path / "declared.py"
    path.write_text(
        "from fuzz_attn.case.domain import Domain\nfrom fuzz_attn.targets import Target\n"
        f"def attend({LEAST}): ...\ntarget = Target('mine', attend, domain=Domain(head_sizes=(64, 128)))\n"
    )
    target = load_target(f"{path}:target")
    assert (target.name, target.domain.head_sizes) == ("mine", (64, 128))


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
def test_features_without_an_argument_leave_the_domain(parameters: str, left_out: set[str]) -> None:
    domain = as_target(with_signature(parameters), "some").domain
    assert domain.features == DERIVED - left_out
    assert domain.paths == ("auto",)
    assert not domain.fp8_q_scales


def test_scratch_arguments_choose_the_path(case: AttentionCase) -> None:
    signature = signature_of(with_signature(PUBLISHED + f"{', '.join(_SCRATCH)}, alibi_slopes=None"))
    assert UNIFIED.domain(signature).paths == ("2d", "3d")
    on_2d = UNIFIED.arguments_for(signature, materialise(replace(case, launch=LaunchHints(path="2d"))))
    assert [on_2d[name] for name in _SCRATCH] == [None] * 5
    on_3d = UNIFIED.arguments_for(signature, materialise(replace(case, launch=LaunchHints(path="3d", num_segments=3))))
    threshold, segments, output, largest, total = (on_3d[name] for name in _SCRATCH)
    assert (threshold >= len(case.sequences), segments) == (True, 3)
    assert output.shape == (6, 4, 3, 8)
    assert largest.shape == total.shape == (6, 4, 3)
    assert {output.dtype, largest.dtype, total.dtype} == {torch.float32}


def test_nothing_is_passed_that_the_signature_lacks(case: AttentionCase) -> None:
    tensors = materialise(case)
    assert set(UNIFIED.arguments_for(signature_of(with_signature(LEAST)), tensors)) == set(LEAST.split(", "))
    to_anything = set(UNIFIED.arguments_for(signature_of(with_signature("**given")), tensors))
    assert to_anything == set((PUBLISHED + "alibi_slopes, qq_bias, sinks, output_scale").split(", "))


def test_arguments_mean_what_the_published_ones_mean() -> None:
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
    arguments = UNIFIED.arguments_for(signature_of(with_signature("kv_quant_mode, **given")), materialise(case))
    assert arguments["cu_seqlens_q"].tolist() == [0, 2, 3]
    assert arguments["seqused_k"].tolist() == [5, 1]
    assert (arguments["max_seqlen_q"], arguments["max_seqlen_k"]) == (2, 5)
    assert (arguments["window_size"], arguments["softcap"], arguments["causal"]) == ((3, 0), 2.5, True)
    assert arguments["q_descale"] is None
    assert [arguments[name].tolist() for name in ("k_descale", "v_descale", "output_scale")] == [[0.5], [2.0], [4.0]]
    assert [arguments[name].shape for name in ("alibi_slopes", "sinks")] == [(2,), (2,)]
    assert arguments["kv_quant_mode"] == 1
    plain = replace(case, dtypes=DTypes(), scales=Scales(), window=0, alibi=None)
    arguments = UNIFIED.arguments_for(signature_of(with_signature("kv_quant_mode, **given")), materialise(plain))
    assert arguments["window_size"] == (-1, -1)
    assert arguments["kv_quant_mode"] == 0
    assert [arguments[name] for name in ("k_descale", "v_descale", "output_scale", "alibi_slopes")] == [None] * 4


@pytest.mark.parametrize(("scale", "given"), [(1.0, None), (0.5, [0.5])])
def test_a_scale_of_q_is_passed_where_it_changes_something(scale: float, given: list[float] | None) -> None:
    dtypes = DTypes(q="float8_e4m3fn", kv="float8_e4m3fn", out="bfloat16")
    tensors = materialise(AttentionCase(sequences=(Sequence(1),), dtypes=dtypes, scales=Scales(q=scale)))
    passed = UNIFIED.arguments_for(signature_of(with_signature("**given")), tensors)["q_descale"]
    assert (passed if passed is None else passed.tolist()) == given


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINT_GROUP)


def test_entry_points_are_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "package_with_a_kernel.py").write_text(f"def attend({LEAST}): ...\nnothing = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = {
        "theirs": point("theirs", "package_with_a_kernel:attend"),
        "gone": point("gone", "package_that_is_gone:attend"),
        "renamed": point("renamed", "package_with_a_kernel:other"),
        "number": point("number", "package_with_a_kernel:nothing"),
    }
    monkeypatch.setattr(
        targets, "entry_points", lambda group: tuple(points.values()) if group == ENTRY_POINT_GROUP else ()
    )
    assert target_names() == (*BUILT_IN_NAMES, "theirs", "gone", "renamed", "number")
    assert load_target("theirs").name == "theirs"
    for name, message in {
        "gone": r"target='gone' \(entry point package_that_is_gone:attend\) does not load: No module named",
        "renamed": r"target='renamed' \(entry point package_with_a_kernel:other\) does not load: module .* has no attr",
        "number": r"target='number' must be callable, and is a int",
        "unknown": r"or one of: unified, paged, context, chunked, theirs, gone, renamed, number",
    }.items():
        with pytest.raises(TargetError, match=message):
            load_target(name)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("unified", "unified"),
        ("a.b:attend", "a.b-attend"),
        ("../my kernels/x.py:attend", "my-kernels-x.py-attend"),
        ("/abs/x.py:A.attend", "abs-x.py-A.attend"),
        ("...", "target"),
    ],
)
def test_a_slug_is_one_folder(name: str, slug: str) -> None:
    assert slug_of(name) == slug
    assert re.fullmatch(r"[\w.-]+", slug)
    assert Target(name, print).slug == slug


def at_the_top() -> None: ...


@functools.wraps(at_the_top)
def wrapped() -> None: ...


class Holder:
    """Holds a function that a worker can find."""

    @staticmethod
    def attend() -> None: ...


def test_a_function_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_of(at_the_top) == f"{__file__}:at_the_top"
    assert spec_of(Holder.attend) == f"{__file__}:Holder.attend"
    monkeypatch.chdir(Path(__file__).parents[1])
    assert spec_of(at_the_top) == "engine/test_target_loading.py:at_the_top", (
        "files below here are named for any checkout"
    )


@pytest.mark.parametrize(
    "function",
    [lambda: None, wrapped, functools.partial(at_the_top), len, Holder().attend.__get__(3)],
    ids=["lambda", "wrapper", "partial", "builtin", "bound"],
)
def test_a_function_that_no_worker_would_find_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(TargetError, match=r"must be a function that its file holds under its own name"):
        spec_of(function)


@pytest.mark.parametrize("budget", [{"max_time": 0}, {"max_time": -1.5}, {"max_cases": 0}])
def test_a_fuzz_test_without_a_budget_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(FuzzAttnError, match=r"^max_(time|cases)=\S+ must be above 0$"):
        fuzz("unified", **budget)


def test_a_fuzz_test_carries_its_arguments() -> None:
    test = fuzz(at_the_top, family="unified", max_cases=7)
    (mark,) = test.pytestmark  # type: ignore[attr-defined] # pytest puts it there
    assert mark.name == MARKER
    assert mark.kwargs["target"].endswith("test_target_loading.py:at_the_top")
    assert {name: mark.kwargs[name] for name in ("family", "backend", "max_time", "max_cases")} == {
        "family": "unified",
        "backend": None,
        "max_time": None,
        "max_cases": 7,
    }


@pytest.mark.parametrize("name", BUILT_IN_NAMES)
def test_the_built_in_targets_take_every_feature_of_their_family(name: str) -> None:
    target = load_target(name)
    assert (target.name, target.family) == (name, name)
    assert all(target.domain.allows(feature) for feature in FAMILIES[target.family].features)
    assert BINDINGS[target.family].fits(target.signature) == ""


PAGED = "query, output, key_cache, value_cache, block_table, seq_lens"
CONTEXT = "q, k, v, o, k_cache, v_cache, b_loc, b_start_loc, b_seq_len"
CHUNKED = "query, key, value, output, key_cache, value_cache, block_table, query_start_loc, seq_lens"
SPLIT = ", kv_cache_dtype=None, k_scale=None, v_scale=None, alibi_slopes=None, sliding_window=None"
SPLIT += ", sm_scale=None, sinks=None"


@pytest.mark.parametrize(
    ("parameters", "family", "left_out"),
    [
        (PAGED + SPLIT + ", query_start_loc=None, filter_by_query_len=False, output_scale=None", "paged", set()),
        (PAGED + SPLIT, "paged", {"filter_by_query_len", "fp8_out"}),
        (PAGED, "paged", {"filter_by_query_len", "fp8_out", "window", "alibi", "sinks", "fp8_kv", "uint8_cache"}),
        (CONTEXT + SPLIT + ", max_seq_len=0, max_input_len=0, skip_decode=False, fp8_out_scale=None", "context", set()),
        (CONTEXT + SPLIT + ", max_seq_len=0, max_input_len=0", "context", {"filter_by_query_len", "fp8_out"}),
        (CHUNKED + SPLIT + ", max_seq_len=0, max_query_len=0, output_scale=None", "chunked", set()),
        (CHUNKED + SPLIT + ", max_seq_len=0, max_query_len=0, is_block_table_ptr=False", "chunked", {"fp8_out"}),
    ],
)
def test_split_families_are_known_by_their_signatures(parameters: str, family: Family, left_out: set[str]) -> None:
    target = as_target(with_signature(parameters), "some")
    assert target.family == family
    assert target.domain.features == FAMILIES[family].features - left_out


def test_arguments_of_split_families_mean_what_the_published_ones_mean() -> None:
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
    anything = signature_of(with_signature("**given"))
    arguments = BINDINGS["context"].arguments_for(anything, materialise(case))
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
    arguments = BINDINGS["paged"].arguments_for(anything, materialise(plain))
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
def test_the_default_scale_is_left_out_where_there_is_one(parameters: str, scale: float, given: bool) -> None:
    case = AttentionCase((Sequence(1),), family="paged", softmax_scale=scale)
    arguments = BINDINGS["paged"].arguments_for(signature_of(with_signature(parameters)), materialise(case))
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
def test_the_cache_s_type_is_named_as_serving_does(kv: DTypeName, as_bytes: bool, word: str) -> None:
    case = AttentionCase((Sequence(1),), family="chunked", dtypes=DTypes(kv=kv), uint8_cache=as_bytes)
    assert BINDINGS["chunked"].arguments(materialise(case))["kv_cache_dtype"] == word
