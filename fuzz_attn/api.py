"""The Python API. ``verify`` fuzzes a kernel, ``fuzz`` makes a fuzz test; ``cases`` and ``check`` are for ``@given``.

    import fuzz_attn

    report = fuzz_attn.verify("my_package.attention:unified_attention", max_time=20)
    test_my_attention = fuzz_attn.fuzz("my_package.attention:unified_attention")

The pytest plugin splits a fuzz test into shards, one for each pytest-xdist worker. The engine is imported at the first
call, so that ``import fuzz_attn`` stays cheap.
"""

from __future__ import annotations

import math
import os
import reprlib
import secrets
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final

from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.binding.binding import DECORATED
from fuzz_attn.errors import FuzzAttnError, TargetError
from fuzz_attn.operations.registry import FAMILIES

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzz_attn.engine.listeners.results import RunReport
    from fuzz_attn.given import KernelJudge

LARGEST_NUMBER: Final = 2**53
LARGEST: Final = {"workers": 4096}
"""The largest values of arguments; messages hold no larger numbers, and no machine starts more processes."""
MARKER: Final = "fuzz_attn"
SHARD: Final = "fuzz_attn_shard"
"""The fixture that runs a shard of a fuzz test."""
CALLED_BY_PLUGIN: Final = "called_by_fuzz_attn"
"""An attribute of the tests of :func:`fuzz`."""
IN_WORKER: Final = "FUZZ_ATTN_WORKER"
"""An environment variable that the processes of a run have."""


def fuzz(
    target: str | Callable[..., object] | EllipsisType = ...,
    *,
    family: str | None = None,
    binding: dict[str, Any] | None = None,
    backend: str | None = None,
    max_time: float | None = None,
    max_cases: int | None = None,
) -> Callable[..., Any]:
    """Return a pytest test that fuzzes a target; without a target, a decorator that makes one of a function.

    ``target`` is a value of ``fuzz-attn run --target``, or a function that its module defines by name. ``family`` None
    is the family that fits the signature; ``binding`` says how the target is called, as a binding file does (see
    docs/bindings.md); ``backend`` None is ``auto``. ``max_time`` (seconds) and ``max_cases`` limit the whole test, all
    shards together. The options of pytest's command line (``--fuzz-max-time`` and so on) replace these arguments. As a
    decorator::

        @fuzz_attn.fuzz(max_time=20)
        def test_attention(q, k, v, out, ...):
            kernel[grid](...)

    A decorated function can still be called.
    """
    import pytest  # noqa: PLC0415 - programs that only call verify need no pytest

    options: dict[str, Any] = {"family": family, "binding": binding, "backend": backend}
    options |= {"max_time": max_time, "max_cases": max_cases}
    if isinstance(target, EllipsisType):
        _check(**options)
        return partial(fuzz, **options)
    _check(target=target, **options)
    function = target if callable(target) and _is_being_defined(target) else None
    spec = target if isinstance(target, str) else _spec(target) if function is not None else spec_of(target)

    @pytest.mark.usefixtures(SHARD)
    @pytest.mark.fuzz_attn(target=spec, **options)
    def test(*given: object, **named: object) -> object:  # a method of a test class gets the instance
        if function is not None and (given or named):
            return function(*given, **named)
        raise FuzzAttnError("a test of fuzz_attn.fuzz is called by pytest, with the plugin of fuzz_attn")

    setattr(test, CALLED_BY_PLUGIN, True)
    if function is not None:
        setattr(test, DECORATED, function)
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):  # not its parameters: they are no fixtures
            setattr(test, name, getattr(function, name))
    return test


def verify(
    target: str | Callable[..., object],
    *,
    family: str | None = None,
    binding: dict[str, Any] | None = None,
    backend: str | None = None,
    max_time: float | None = None,
    max_cases: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    memory: str | None = None,
    strict: bool | None = None,
    out: str | Path | None = None,
) -> RunReport:
    """Fuzz a target in worker processes and return what was found; ``report.ok`` says whether to trust it.

    ``target`` is a value of ``fuzz-attn run --target``, or a function that a file defines. ``binding`` says how it is
    called, with the keys of a binding file (docs/bindings.md). None leaves a choice to ``[tool.fuzz_attn]`` of the
    nearest pyproject.toml, else to the default: the family that fits the signature, the backend ``auto``, one minute, a
    random seed, a worker for each core, and 8 GiB of memory for each worker (``memory`` is a text such as ``8G``, or
    ``none``). Failures are saved in tests/counterexamples and logs in reports/runs; with ``out``, both below that
    folder. With ``strict``, a case that the target refuses is a failure.

    Raises :class:`fuzz_attn.errors.FuzzAttnError` where the target does not load or the output cannot be written.
    """
    _check(target=target, family=family, binding=binding, backend=backend, max_time=max_time, max_cases=max_cases)
    _check(seed=seed, workers=workers, memory=memory, strict=strict, out=out)
    if IN_WORKER in os.environ:
        raise TargetError(
            "verify() was called while a worker imported the target's file: call it under `if __name__ == '__main__':`"
        )
    from fuzz_attn.binding.binding import binding_of  # noqa: PLC0415 - loads msgspec, as below
    from fuzz_attn.engine.fuzz_run import run_and_log  # noqa: PLC0415 - as above
    from fuzz_attn.engine.orders import Setup  # noqa: PLC0415 - as above
    from fuzz_attn.engine.run_folder import counterexample_folder, new_run_folder  # noqa: PLC0415 - as above
    from fuzz_attn.engine.run_plan import RunPlan, available_cores  # noqa: PLC0415 - as above
    from fuzz_attn.settings import DEFAULT_MAX_TIME, DEFAULT_MEMORY, bytes_of, load_settings  # noqa: PLC0415 - as above

    settings = load_settings()
    if max_time is None and max_cases is None:
        max_time, max_cases = settings.max_time, settings.max_cases
    if max_time is None and max_cases is None:
        max_time = DEFAULT_MAX_TIME
    out = settings.out if out is None else out
    memory = (settings.memory or DEFAULT_MEMORY) if memory is None else memory
    wanted = settings.workers if workers is None else workers
    seed = settings.seed if seed is None else seed
    plan = RunPlan(
        Setup(
            target if isinstance(target, str) else spec_of(target),
            family,
            backend or settings.backend or "auto",
            bool(settings.strict if strict is None else strict),
            bytes_of(memory),
            binding_of(binding),
        ),
        seed=secrets.randbelow(2**32) if seed is None else seed,
        workers=wanted if isinstance(wanted, int) else available_cores(),
        max_time=max_time,
        max_cases=max_cases,
        run_folder=new_run_folder(out),
        counterexamples=counterexample_folder(out),
    )
    report = run_and_log(plan)
    if report.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if report.stopped_by:
        signal.raise_signal(report.stopped_by)
    return report


def check(
    kernel: str | Callable[..., object],
    case: Any,
    relation: str | None = None,
    *,
    family: str | None = None,
    binding: dict[str, Any] | None = None,
    backend: str | None = None,
    out: str | Path | None = None,
    toward_bound: bool = False,
) -> None:
    """Judge one case on a kernel in this process, and raise :class:`fuzz_attn.KernelError` if the kernel is wrong.

    ``kernel``, ``family``, ``binding``, ``backend`` and ``out`` are as for :func:`verify`. ``case`` is a value of
    :func:`cases`, or the path of a saved failure. ``relation`` is the name of a metamorphic relation to check as well
    (docs/properties.md). The kernel is loaded and calibrated at its first case. If it crashes, so does this process.

    In a test with ``@given``, a case that the kernel refuses or does not promise is rejected, as by ``assume``, and
    Hypothesis learns features (``event``). Elsewhere such a case raises :class:`fuzz_attn.errors.NotJudgedError`. What
    is shown to the user is explained and saved. With ``toward_bound``, Hypothesis looks for cases whose output is
    nearer to its bound (``target``): fewer of the cases differ then, so that it may find less.
    """
    __tracebackhide__ = True
    _check(target=kernel, family=family, binding=binding, backend=backend, out=out)
    from fuzz_attn.engine.run_folder import counterexample_folder  # noqa: PLC0415 - loads msgspec, as below
    from fuzz_attn.given import check_case  # noqa: PLC0415 - loads Hypothesis
    from fuzz_attn.settings import load_settings  # noqa: PLC0415 - as above

    out = load_settings().out if out is None else out
    judge = _judge(kernel, family, binding, backend)
    check_case(judge, case, relation, counterexample_folder(out), toward_bound=toward_bound)


def cases(
    kernel: str | Callable[..., object],
    *,
    family: str | None = None,
    binding: dict[str, Any] | None = None,
    backend: str | None = None,
    **chosen: Any,
) -> SearchStrategy[Any]:
    """Return a Hypothesis strategy of the cases that a kernel promises.

    ``kernel``, ``family``, ``binding`` and ``backend`` are as for :func:`check`; a family names its built-in kernel.
    Each further argument is a value of all cases, or a strategy of values:

    - a feature (docs/targets.md), such as ``window``, ``softcap`` or ``alibi``: True, False, or a value that has it;
    - ``head_size``, ``block_size``, ``num_kv_heads``, ``num_queries_per_kv``, ``value_size``, ``dtypes`` (a type of all
      tensors), ``mask``, ``softmax_scale``, ``seed``;
    - an upper bound: ``max_sequences``, ``max_query_len``, ``max_seq_len``.

    The kernel is loaded when the strategy is used first; only then an unknown name, or a value that the kernel does not
    promise, raises :class:`fuzz_attn.errors.DomainError`. Shrinks towards one token of one head without any feature.
    """
    _check(target=kernel, family=family, binding=binding, backend=backend)
    from fuzz_attn.given import narrowed_cases  # noqa: PLC0415 - loads Hypothesis

    return narrowed_cases(lambda: _judge(kernel, family, binding, backend), chosen)


def _judge(
    kernel: str | Callable[..., object], family: str | None, binding: dict[str, Any] | None, backend: str | None
) -> KernelJudge:
    """Return the judge of a kernel in this process."""
    from fuzz_attn.binding.binding import binding_of  # noqa: PLC0415 - loads msgspec, as below
    from fuzz_attn.given import kernel_judge  # noqa: PLC0415 - as above
    from fuzz_attn.settings import load_settings  # noqa: PLC0415 - as above

    spec = kernel if isinstance(kernel, str) else spec_of(kernel)
    return kernel_judge(spec, family, binding_of(binding), backend or load_settings().backend)


_WORDS: Final = {"family": tuple(FAMILIES), "backend": BACKEND_NAMES}
_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "target": ((str, Callable), "a text or a function"),  # type: ignore[dict-item] # isinstance takes it
    "family": ((str,), "a text"),
    "binding": ((dict,), "a dict"),
    "backend": ((str,), "a text"),
    "max_time": ((int, float), "a number of seconds"),
    "max_cases": ((int,), "a whole number"),
    "seed": ((int,), "a whole number"),
    "workers": ((int,), "a whole number"),
    "memory": ((str,), "a text such as '8G'"),
    "strict": ((bool,), "True or False"),
    "out": ((str, Path), "a text or a path"),
}
"""What each argument may be; all but the target may also be None."""


def _check(**arguments: object) -> None:
    """Raise :class:`FuzzAttnError` for an argument of a wrong type, out of its range, or that is no known word."""
    for name, value in arguments.items():
        if value is not None or name == "target":
            _check_type(name, value)
            _check_value(name, value)


def _check_type(name: str, value: object) -> None:
    types, words = _TYPES[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise FuzzAttnError(f"{name}={_shown(value)} must be {words}, and is a {type(value).__name__}")


def _check_value(name: str, value: object) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        least = 0 if name == "seed" else 1 if isinstance(value, int) else math.nextafter(0.0, 1.0)
        if not least <= value < math.inf:
            raise FuzzAttnError(f"{name}={value} must be {'at least' if name == 'seed' else 'above'} 0")
        if value > LARGEST.get(name, LARGEST_NUMBER):
            raise FuzzAttnError(f"{name}={_shown(value)} must be at most {LARGEST.get(name, LARGEST_NUMBER)}")
    if isinstance(value, str) and not value:
        raise FuzzAttnError(f"{name}='' must not be empty")
    if name in _WORDS and value not in _WORDS[name]:
        raise FuzzAttnError(f"{name}={_shown(value)} must be one of: {', '.join(_WORDS[name])}")


def _shown(value: object) -> str:
    """Return a value in a few characters; one of a class of the user's may have no text."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001 - its class is the user's
        return f"<{type(value).__name__}>"


def spec_of(function: Callable[..., object]) -> str:
    """Return ``path.py:function`` of a function, so that another process can import it.

    The path is relative if the file is below the current folder: saved counterexamples then replay in another checkout.
    Raises :class:`TargetError` for a function that its module does not hold under its own name: one nested in another,
    or a wrapper with the name of the function that it wraps.
    """
    call: Any = function
    name, module = getattr(call, "__qualname__", ""), sys.modules.get(getattr(call, "__module__", ""))
    source = getattr(module, "__file__", None)
    if getattr(module, "__name__", "") == "__main__" and (source is None or not Path(source).is_file()):
        raise TargetError(
            f"target={name} is defined in a notebook or an interactive session, which a worker process cannot import: "
            "write it to a file (in a notebook, %%writefile kernel.py) and name it as 'kernel.py:function'"
        )
    if not name or source is None or _attribute(module, name) is not function:
        raise TargetError(
            f"target={function!r} must be a function that its file holds under its own name, so that a worker can "
            "import it; or name it as 'path.py:function'"
        )
    return _spec(function)


def _spec(function: Callable[..., object]) -> str:
    call: Any = function
    path = Path(sys.modules[call.__module__].__file__ or "").resolve()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{call.__qualname__}"


def _is_being_defined(function: Callable[..., object]) -> bool:
    """Return whether a function is decorated: its file, or a class there, does not hold its name yet."""
    call: Any = function
    name, module = getattr(call, "__qualname__", ""), sys.modules.get(getattr(call, "__module__", ""))
    is_named = bool(name) and all(map(str.isidentifier, name.split(".")))
    return is_named and getattr(module, "__file__", None) is not None and _attribute(module, name) is None


def _attribute(module: object, name: str) -> object:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
