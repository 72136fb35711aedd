"""A domain that names unknown things, exceeds a bound or allows nothing raises one line: argument, value, bound."""

from typing import Any

import pytest

from fuzz_attn.case.domain import Domain, within
from fuzz_attn.errors import DomainError
from fuzz_attn.strategies.compile_keys import key_pool


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
    ],
)
def test_bad_domain_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message) as raised:
        Domain(**arguments)
    assert "\n" not in str(raised.value)


def test_features_may_be_any_set() -> None:
    assert Domain(features={"window"}) == Domain(features=frozenset({"window"}))  # type: ignore[arg-type] # a user's
    assert Domain(features=()).features == frozenset()  # type: ignore[arg-type] # as above


def test_range_without_a_common_head_size_has_cases() -> None:
    domain = Domain(family="paged", head_sizes=(129, 143), dtypes=("float16",), features=frozenset())
    assert {key.head_size for key in key_pool(domain)} == {136}


def test_sizes_within_bounds() -> None:
    assert [within(size, (2, 4)) for size in (1, 2, 3, 5)] == [False, True, True, False]
    assert [within(size, (2, 4, 8)) for size in (2, 3, 8)] == [True, False, True]
