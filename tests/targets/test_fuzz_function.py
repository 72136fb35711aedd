"""`fuzz_attn.fuzz`: how it names a function for a worker, and what the test that it makes carries."""

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz_attn import fuzz, verify
from fuzz_attn.api import MARKER, spec_of
from fuzz_attn.errors import FuzzAttnError, TargetError
from fuzz_attn.targets.loading import object_named


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
    (mark,) = (each for each in test.pytestmark if each.name == MARKER)  # type: ignore[attr-defined] # pytest's
    assert mark.kwargs["target"].endswith("test_fuzz_function.py:at_the_top")
    assert {name: mark.kwargs[name] for name in ("family", "backend", "max_time", "max_cases")} == {
        "family": "unified",
        "backend": None,
        "max_time": None,
        "max_cases": 7,
    }


class Unprintable:
    """A value without a text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


WRONG: list[tuple[str, Any, str]] = [
    ("target", 3, r"target=3 must be a text or a function, and is a int"),
    ("target", None, r"target=None must be a text or a function"),
    ("target", "", r"target='' must not be empty"),
    ("family", 3, r"family=3 must be a text"),
    ("binding", "a.toml", r"binding='a.toml' must be a dict, and is a str"),
    ("backend", True, r"backend=True must be a text"),
    ("max_time", "ten", r"max_time='ten' must be a number of seconds, and is a str"),
    ("max_time", True, r"max_time=True must be a number of seconds"),
    ("max_time", math.nan, r"max_time=nan must be above 0"),
    ("max_time", math.inf, r"max_time=inf must be above 0"),
    ("max_time", Unprintable(), r"max_time=<Unprintable .*> must be a number"),
    ("max_cases", 2.5, r"max_cases=2.5 must be a whole number, and is a float"),
    ("max_cases", 10**400, r"max_cases=1000\S+ must be at most 9007199254740992"),
    ("seed", -1, r"seed=-1 must be at least 0"),
    ("seed", "7", r"seed='7' must be a whole number"),
    ("workers", 0, r"workers=0 must be above 0"),
    ("workers", 10**6, r"workers=1000000 must be at most 4096"),
    ("workers", "auto", r"workers='auto' must be a whole number"),
    ("memory", 8, r"memory=8 must be a text such as '8G'"),
    ("memory", "8", r"'8' must be a size with a unit"),
    ("strict", "yes", r"strict='yes' must be True or False"),
    ("out", 3, r"out=3 must be a text or a path"),
    ("out", "", r"out='' must not be empty"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_argument_is_one_error(
    name: str, value: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"target": "unified", name: value}
    with pytest.raises(FuzzAttnError, match=f"^{message}"):
        verify(**given)
    if name in inspect.signature(fuzz).parameters:
        with pytest.raises(FuzzAttnError, match=f"^{message}"):
            fuzz(**given)
    assert not list(tmp_path.iterdir())


def test_a_fuzz_test_without_the_plugin_does_not_pass() -> None:
    with pytest.raises(FuzzAttnError, match="is called by pytest, with the plugin of fuzz_attn"):
        fuzz(at_the_top)()


@fuzz(max_cases=3)
def with_options(q: int, out: int = 0) -> int:
    """Attend."""
    return q + out


class Decorated:
    """Holds a decorated function."""

    @fuzz
    @staticmethod
    def without_options(q: int) -> int:
        return q


@pytest.mark.parametrize(
    ("test", "name", "max_cases"),
    [(with_options, "with_options", 3), (Decorated.without_options, "Decorated.without_options", None)],
)
def test_fuzz_decorates_a_function(test: Callable[..., Any], name: str, max_cases: int | None) -> None:
    (mark,) = (each for each in test.pytestmark if each.name == MARKER)  # type: ignore[attr-defined] # pytest's
    assert mark.kwargs["target"].endswith(f"test_fuzz_function.py:{name}")
    assert mark.kwargs["max_cases"] == max_cases
    assert test(q=3) == 3
    fuzzed = object_named(mark.kwargs["target"])
    assert fuzzed is not test
    assert next(iter(inspect.signature(fuzzed).parameters)) == "q", "the function itself, for a worker"  # type: ignore[arg-type]
    assert spec_of(test) == mark.kwargs["target"]
    with pytest.raises(FuzzAttnError, match="is called by pytest"):
        test()
