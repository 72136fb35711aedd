"""A domain that names unknown things, exceeds a bound or allows nothing raises one line: argument, value, bound."""

from typing import Any

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain, beside, unpromised, within
from fuzz_attn.case.parts import DTypes, LaunchHints, PageLayout, Sequence
from fuzz_attn.case.recipes import AlibiRecipe
from fuzz_attn.errors import DomainError
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.dtypes import plain_dtypes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "split"}, r"domain\.family='split' must be one of unified, paged"),
        ({"features": {"windows"}}, r"domain\.features=\['windows'\] has no 'windows': choose among alibi, .*window"),
        ({"features": "window"}, r"domain\.features='window' must be a set of names"),
        ({"dtypes": ("float64",)}, r"domain\.dtypes=\('float64',\) has no 'float64': choose among float32"),
        ({"dtypes": ("float8_e5m2",)}, r"has no 'float8_e5m2': choose among float32, float16, bfloat16"),
        ({"dtypes": ()}, r"domain\.dtypes=\(\) must name at least one of float32"),
        ({"paths": ("4d",)}, r"domain\.paths=\('4d',\) has no '4d': choose among auto, 2d, 3d"),
        ({"family": "paged", "paths": ("3d",)}, r"domain\.paths=\('3d',\) has no '3d': choose among auto"),
        ({"head_sizes": ()}, r"domain\.head_sizes=\(\) must be ascending sizes from 1 to 1024"),
        ({"head_sizes": (64, 2048)}, r"domain\.head_sizes=\(64, 2048\) must be ascending sizes from 1 to 1024"),
        ({"block_sizes": (32, 16)}, r"domain\.block_sizes=\(32, 16\) must be ascending sizes from 1 to 4096"),
        ({"group_sizes": (0, 4)}, r"domain\.group_sizes=\(0, 4\) must be ascending sizes from 1"),
        ({"family": "paged", "head_sizes": (13, 15)}, r"head_sizes=\(13, 15\) must allow a multiple of 4 for"),
        ({"family": "paged", "head_sizes": (20,), "dtypes": ("float16",)}, r"\(20,\) must allow a multiple of 8 for"),
        ({"cache_dtypes": ("int8",)}, r"domain\.cache_dtypes=\('int8',\) has no 'int8': choose among float32"),
        ({"output_dtypes": ()}, r"domain\.output_dtypes=\(\) must name at least one of float32"),
        (
            {"cache_dtypes": ("float8_e5m2",), "features": {"window"}},
            r"cache_dtypes=\('float8_e5m2',\) must contain one of float32, float16, bfloat16$",
        ),
        (
            {"output_dtypes": ("float8_e5m2",), "excluded": (("fp8_out",),)},
            r"output_dtypes=\('float8_e5m2',\) must contain one of float32, float16, bfloat16$",
        ),
        ({"segments": (0, 4)}, r"domain\.segments=\(0, 4\) must be ascending sizes from 1 to 256"),
        ({"excluded": (("alibi", "caps"),)}, r"an entry of domain\.excluded=\('alibi', 'caps'\) has no 'caps'"),
        ({"excluded": ((),)}, r"an entry of domain\.excluded=\(\) must name at least one of alibi"),
        ({"alibi_kinds": ("paper",)}, r"domain\.alibi_kinds=\('paper',\) has no 'paper': choose among standard, pos"),
        ({"alibi_kinds": ("positive",)}, r"domain\.alibi_kinds=\('positive',\) must contain 'standard'"),
    ],
)
def test_bad_domain_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message) as raised:
        Domain(**arguments)
    assert "\n" not in str(raised.value)


def test_features_may_be_any_set() -> None:
    assert Domain(features={"window"}) == Domain(features=frozenset({"window"}))  # type: ignore[arg-type] # a user's
    assert Domain(features=()).features == frozenset()  # type: ignore[arg-type] # as above


def test_an_unpublished_feature_of_an_excluded_combination_is_no_feature() -> None:
    domain = Domain(excluded=(frozenset({"bias_dtypes", "sinks"}), frozenset({"window", "sinks"})))
    assert Domain().features - domain.features == {"bias_dtypes"}
    assert domain.excluded == (frozenset({"window", "sinks"}),)


def test_without_mixed_types_an_output_needs_a_type_of_the_queries() -> None:
    limits: dict[str, Any] = {"dtypes": ("bfloat16",), "output_dtypes": ("float32",)}
    assert plain_dtypes(Domain(**limits)) == (DTypes("bfloat16", "bfloat16", "float32"),)
    message = r"^domain\.output_dtypes=\('float32',\) must contain one of bfloat16$"
    with pytest.raises(DomainError, match=message):
        Domain(**limits, features=frozenset({"window"}))


def test_an_excluded_single_feature_is_no_feature() -> None:
    domain = Domain(excluded=(("alibi",), ("alibi", "sinks"), ("window", "sinks")))  # type: ignore[arg-type] # a user's
    assert not domain.allows("alibi")
    assert domain.excluded == (frozenset({"window", "sinks"}),)


def test_what_is_left_beside_some_features() -> None:
    domain = Domain(excluded=(frozenset({"alibi", "sinks"}), frozenset({"window", "softcap", "qq_bias"})))
    left = beside(domain, ("sinks", "window"))
    assert domain.features - left.features == {"alibi"}
    assert domain.features - beside(domain, ("window", "softcap")).features == {"qq_bias"}
    assert beside(domain, ()) == domain


FP8 = DTypes("float16", "float8_e5m2", "float16")


@pytest.mark.parametrize(
    ("changes", "limits", "lacking"),
    [
        ({}, {}, ""),
        ({"window": 2}, {"features": {"sinks"}}, "sliding window"),
        ({"pages": PageLayout(first_block=9)}, {"features": ()}, ""),
        (
            {"window": 2, "softcap": 1.0},
            {"excluded": (("softcap", "window"),)},
            "sliding window together with soft cap",
        ),
        ({"window": 2}, {"excluded": (("softcap", "window"),)}, ""),
        ({"launch": LaunchHints("3d", 2)}, {"paths": ("2d",)}, "the path 3d"),
        ({"launch": LaunchHints("3d", 2)}, {}, ""),
        ({"launch": LaunchHints("3d", 2)}, {"paths": ("2d", "3d"), "segments": (16,)}, "2 segments"),
        ({"dtypes": DTypes("float16", "float16", "float16")}, {"dtypes": ("bfloat16",)}, "queries of float16"),
        ({"dtypes": FP8}, {"cache_dtypes": ("float16", "float8_e4m3fn")}, "a cache of float8_e5m2"),
        ({"dtypes": FP8}, {"output_dtypes": ("float32",)}, "an output of float16"),
        ({}, {"head_sizes": (64, 128)}, "heads of 16"),
        ({}, {"block_sizes": (32,)}, "pages of 16"),
        ({}, {"group_sizes": (2, 8)}, "1 query heads for each KV head"),
        ({"alibi": AlibiRecipe("negative")}, {"alibi_kinds": ("standard",)}, "negative ALiBi slopes"),
    ],
)
def test_what_a_target_does_not_promise(changes: dict[str, Any], limits: dict[str, Any], lacking: str) -> None:
    case = AttentionCase(sequences=(Sequence(2, 3),), **changes)
    assert unpromised(case, Domain(**limits)) == lacking


def test_range_without_a_common_head_size_has_cases() -> None:
    domain = Domain(family="paged", head_sizes=(129, 143), dtypes=("float16",), features=frozenset())
    assert {key.head_size for key in key_pool(domain)} == {136}


def test_sizes_within_bounds() -> None:
    assert [within(size, (2, 4)) for size in (1, 2, 3, 5)] == [False, True, True, False]
    assert [within(size, (2, 4, 8)) for size in (2, 3, 8)] == [True, False, True]
