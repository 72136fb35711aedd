"""fuzz(): a fuzz test of a kernel in two lines of anybody's test file.

    from fuzz_attn import fuzz

    test_my_attention = fuzz("my_package.attention:unified_attention")

The plugin spreads it over shards, one for each pytest-xdist worker, each with its own seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.case.families import Family
from fuzz_attn.errors import FuzzAttnError, TargetError

if TYPE_CHECKING:
    from fuzz_attn.pytest_plugin import Shard

MARKER = "fuzz_attn"


def fuzz(
    target: str | Callable[..., object],
    *,
    family: str | None = None,
    backend: str | None = None,
    max_time: float | None = None,
    max_cases: int | None = None,
) -> Callable[..., None]:
    """Return a pytest test that fuzzes a target.

    ``target`` is what ``fuzz-attn run --target`` takes, or a function, which is then found again by its file and name.
    ``family`` None takes the one that fits the signature; ``backend`` None is ``auto``. ``max_time`` (seconds) and
    ``max_cases`` are the budget of the whole test, all shards together side by side; options of the same names on
    pytest's command line (``--fuzz-max-time`` and so on) win over them.
    """
    for name, value in (("max_time", max_time), ("max_cases", max_cases)):
        if value is not None and value <= 0:
            raise FuzzAttnError(f"{name}={value} must be above 0")
    for name, word, known in (("family", family, get_args(Family)), ("backend", backend, BACKEND_NAMES)):
        if word is not None and word not in known:
            raise FuzzAttnError(f"{name}={word!r} must be one of: {', '.join(known)}")
    spec = target if isinstance(target, str) else spec_of(target)

    @pytest.mark.fuzz_attn(target=spec, family=family, backend=backend, max_time=max_time, max_cases=max_cases)
    def test(fuzz_attn_shard: Shard) -> None:
        fuzz_attn_shard.run()

    return test


def spec_of(function: Callable[..., object]) -> str:
    """Return ``path.py:function`` of a function, so that another process finds it again.

    The path is relative to the current folder where the file lies below it: saved counterexamples then replay in
    another checkout. Raises :class:`TargetError` for a function that its module does not hold under its own name: one
    nested in another, or one that took over the name of the function that it wraps.
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
