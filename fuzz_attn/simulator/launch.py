"""Launches caught where Triton launches, for the time of a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from fuzz_attn.simulator.frontend.interpreted import compiled
from fuzz_attn.simulator.runtime.heap import keep_freed_memory
from fuzz_attn.simulator.session import Options, Session


@contextlib.contextmanager
def simulate(options: Options | None = None) -> Iterator[Session]:
    """Return a `Session` in which every `kernel[grid](...)` runs on the CPU, in place, on torch's CPU tensors.

    Works for kernels decorated with and without TRITON_INTERPRET, and through autotuners (which take their
    first configuration instead of a benchmark) and heuristics. Sessions may be nested: the innermost one
    catches. Nothing stays patched.
    """
    keep_freed_memory()
    session = Session(options or Options())
    with _caught(_replacements(session)), session.watcher():
        yield session


def _replacements(session: Session) -> list[tuple[type, Callable[..., None]]]:
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> None:
        if warmup:
            return
        for hook in self.pre_run_hooks:
            hook(*arguments, **keywords)
        session.launch(compiled(self), arguments, keywords, grid)

    return [(JITFunction, run), (InterpretedFunction, run), (Autotuner, _autotuned)]


def _autotuned(self: Any, *arguments: Any, **keywords: Any) -> Any:
    """Return the launch of an autotuned kernel with the first configuration that its pruning leaves."""
    self.nargs = dict(zip(self.arg_names, arguments, strict=False))
    config = self.prune_configs(keywords)[0] if len(self.configs) > 1 else self.configs[0]
    self.best_config = config
    chosen = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **keywords, **chosen})
    result = self.fn.run(*arguments, **keywords, **chosen)
    self.nargs = None
    return result


@contextlib.contextmanager
def _caught(replacements: list[tuple[type, Callable[..., None]]]) -> Iterator[None]:
    """Let other functions stand for the `run` of these classes."""
    originals = [(owner, owner.__dict__["run"]) for owner, _ in replacements]
    try:
        for owner, replacement in replacements:
            owner.run = replacement  # type: ignore[attr-defined]  # what the classes are is Triton's business
        yield
    finally:
        for owner, original in originals:
            owner.run = original  # type: ignore[attr-defined]  # as above
