"""The Python API: ``fuzz`` makes a fuzz test of a kernel in two lines of a test file.

    from fuzz_attn import fuzz

    test_my_attention = fuzz("my_package.attention:unified_attention")

The pytest plugin splits the test into shards, one for each pytest-xdist worker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.case.families import Family
from fuzz_attn.errors import FuzzAttnError, TargetError

MARKER: Final = "fuzz_attn"


def fuzz(
    target: str | Callable[..., object],
    *,
    family: str | None = None,
    backend: str | None = None,
    max_time: float | None = None,
    max_cases: int | None = None,
) -> Callable[..., None]:
    """Return a pytest test that fuzzes a target.

    ``target`` is a value of ``fuzz-attn run --target``, or a function that its module defines by name. ``family`` None
    is the family that fits the signature; ``backend`` None is ``auto``. ``max_time`` (seconds) and ``max_cases`` limit
    the whole test, all shards together. The options of pytest's command line (``--fuzz-max-time`` and so on) replace
    these arguments.
    """
    for name, value in (("max_time", max_time), ("max_cases", max_cases)):
        if value is not None and value <= 0:
            raise FuzzAttnError(f"{name}={value} must be above 0")
    for name, word, known in (("family", family, get_args(Family)), ("backend", backend, BACKEND_NAMES)):
        if word is not None and word not in known:
            raise FuzzAttnError(f"{name}={word!r} must be one of: {', '.join(known)}")
    spec = target if isinstance(target, str) else spec_of(target)

    @pytest.mark.fuzz_attn(target=spec, family=family, backend=backend, max_time=max_time, max_cases=max_cases)
    def test(fuzz_attn_shard: Callable[[], None]) -> None:
        fuzz_attn_shard()

    return test


def spec_of(function: Callable[..., object]) -> str:
    """Return ``path.py:function`` of a function, so that another process can import it.

    The path is relative if the file is below the current folder: saved counterexamples then replay in another checkout.
    Raises :class:`TargetError` for a function that its module does not hold under its own name: one nested in another,
    or a wrapper with the name of the function that it wraps.
    """
    call: Any = function
    name, module = getattr(call, "__qualname__", ""), sys.modules.get(getattr(call, "__module__", ""))
    source = getattr(module, "__file__", None)
    if not name or source is None or _attribute(module, name) is not function:
        raise TargetError(
            f"target={function!r} must be a function that its file holds under its own name, so that a worker can "
            "import it; or name it as 'path.py:function'"
        )
    path = Path(source).resolve()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"


def _attribute(module: object, name: str) -> object:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
