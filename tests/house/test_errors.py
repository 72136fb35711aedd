"""Every exception of fuzz_attn is one family, defined in one module."""

import builtins
import inspect
import re
from pathlib import Path

from fuzz_attn import errors

PACKAGE = Path(errors.__file__).parent
BUILT_IN = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}
DEFINED = {name for name, value in vars(errors).items() if inspect.isclass(value)}


CLASS = re.compile(r"^ *class (\w+)(?:\(([^)]*)\))?", re.MULTILINE)
NAME = re.compile(r"\w+")


def exceptions_in(source: str) -> list[str]:
    """Return the classes of a source that derive from an exception, built-in or of ours, or are named like one."""
    classes = CLASS.findall(source)
    return [name for name, bases in classes if name.endswith("Error") or {*NAME.findall(bases)} & (BUILT_IN | DEFINED)]


def test_exceptions_are_found() -> None:
    source = "class A(errors.CaseError): ...\nclass B(Exception): ...\nclass C(int): ...\nclass DError(C): ..."
    assert exceptions_in(source) == ["A", "B", "DError"]


def test_errors_defines_every_exception() -> None:
    own = [path for path in sorted(PACKAGE.rglob("*.py")) if path.resolve().is_relative_to(PACKAGE)]
    found = {path.relative_to(PACKAGE): exceptions_in(path.read_text(encoding="utf-8")) for path in own}
    assert found.pop(Path("errors.py"))
    assert {path: names for path, names in found.items() if names} == {}


def test_errors_are_one_family() -> None:
    """An interrupt is no error: a target must not catch it, so it is no Exception."""
    others = {name for name in DEFINED if not issubclass(getattr(errors, name), errors.FuzzAttnError)}
    assert {name for name in others if not name.endswith("Interrupt")} == set()
    assert {name for name in others if issubclass(getattr(errors, name), Exception)} == set()
