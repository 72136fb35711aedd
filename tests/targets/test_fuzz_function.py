"""`fuzz_attn.fuzz`: how it names a function for a worker, and what the test that it makes carries."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz_attn import fuzz
from fuzz_attn.api import MARKER, spec_of
from fuzz_attn.errors import FuzzAttnError, TargetError


def at_the_top() -> None: ...


@functools.wraps(at_the_top)
def wrapped() -> None: ...


class Holder:
    """Holds a function that a worker can find."""

    @staticmethod
    def attend() -> None: ...


def test_function_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_of(at_the_top) == f"{__file__}:at_the_top"
    assert spec_of(Holder.attend) == f"{__file__}:Holder.attend"
    monkeypatch.chdir(Path(__file__).parents[1])
    assert spec_of(at_the_top) == "targets/test_fuzz_function.py:at_the_top", (
        "files below here are named for any checkout"
    )


@pytest.mark.parametrize(
    "function",
    [lambda: None, wrapped, functools.partial(at_the_top), len, Holder().attend.__get__(3)],
    ids=["lambda", "wrapper", "partial", "builtin", "bound"],
)
def test_function_that_a_worker_cannot_import_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(TargetError, match=r"must be a function that its file holds under its own name"):
        spec_of(function)


@pytest.mark.parametrize("budget", [{"max_time": 0}, {"max_time": -1.5}, {"max_cases": 0}])
def test_fuzz_refuses_an_empty_budget(budget: dict[str, Any]) -> None:
    with pytest.raises(FuzzAttnError, match=r"^max_(time|cases)=\S+ must be above 0$"):
        fuzz("unified", **budget)


def test_fuzz_marks_the_test_with_its_arguments() -> None:
    test = fuzz(at_the_top, family="unified", max_cases=7)
    (mark,) = test.pytestmark  # type: ignore[attr-defined] # pytest puts it there
    assert mark.name == MARKER
    assert mark.kwargs["target"].endswith("test_fuzz_function.py:at_the_top")
    assert {name: mark.kwargs[name] for name in ("family", "backend", "max_time", "max_cases")} == {
        "family": "unified",
        "backend": None,
        "max_time": None,
        "max_cases": 7,
    }
