"""What compiling without a launch uses of Triton that its documentation does not promise. Seen with Triton 3.6 and 3.9.

`tests/backends/test_compiler_backend.py` has a canary for each.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from unittest import mock

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.compiler import ASTSource
from triton.runtime import Autotuner, JITFunction

from fuzz_attn.errors import LoweredInterrupt
from fuzz_attn.ttir.triton_compat import TARGET, Compiled, source_digest

COMPILES_LAUNCHERS: Final = hasattr(nvidia, "compile_module_from_src")
"""Whether Triton also compiles a C function for each signature, with which a kernel is launched; 3.6 does."""

DEFAULT_OPTIONS: Final = {"num_warps": 4, "num_stages": 3}
"""What Triton takes where a launch states no option."""

KernelKey: TypeAlias = tuple[object, str]


@dataclass(frozen=True, slots=True)
class WantedKernel:
    """A kernel as a launch asks Triton's compiler for it; ``key`` is equal for two launches of the same kernel."""

    key: KernelKey
    _compile: Callable[[], Any]

    def compile(self) -> bool:
        """Compile the kernel into Triton's cache; return False if it is there already. Raises what Triton raises."""
        found: list[bool] = []
        before = knobs.compilation.listener
        knobs.compilation.listener = lambda **event: found.append(event["cache_hit"])
        try:
            kernel = self._compile()
        finally:
            knobs.compilation.listener = before
        if kernel is not None and COMPILES_LAUNCHERS:
            with contextlib.suppress(Exception):  # it needs libcuda and a C compiler; a launch would try it again
                nvidia.CudaLauncher(kernel.src, kernel.metadata)
        return not any(found)

    def lower(self) -> None:
        """Lower the kernel with Triton's front end, a small part of compiling it. Raises what Triton raises."""
        make_ir = ASTSource.make_ir

        def make_ir_only(*arguments: Any, **keywords: Any) -> None:
            make_ir(*arguments, **keywords)
            raise LoweredInterrupt

        with contextlib.suppress(LoweredInterrupt), mock.patch.object(ASTSource, "make_ir", make_ir_only):
            self._compile()


@contextlib.contextmanager
def kernels_wanted(want: Callable[[WantedKernel], None]) -> Iterator[None]:
    """Call ``want`` with the kernel of each launch in place of compiling and launching it, until the context is left.

    Triton itself types and specialises the arguments. An autotuner wants the kernels of all its configurations.
    """
    run, compile_kernel = JITFunction.run, JITFunction._do_compile

    def run_nothing(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> Compiled:
        run(self, *arguments, grid=grid, warmup=True, **keywords)
        return Compiled(self, keywords, lambda *launch: None, GPUTarget(*TARGET))

    def note(self: Any, key: str, *arguments: Any, **keywords: Any) -> None:
        source_digest(self)  # here, so that not each process that compiles computes it
        want(WantedKernel((self, key), functools.partial(compile_kernel, self, key, *arguments, **keywords)))

    with (
        mock.patch.object(JITFunction, "run", run_nothing),
        mock.patch.object(JITFunction, "_do_compile", note),
        mock.patch.object(Autotuner, "run", _run_all_configurations),
    ):
        yield


@contextlib.contextmanager
def options_chosen(options: Mapping[str, int]) -> Iterator[dict[str, dict[str, int]]]:
    """Give options of Triton's compiler to each launch until the context is left, in place of the launch's own.

    Yield the launches' own values of these options, by kernel; ``DEFAULT_OPTIONS`` are those of a launch that states
    none. A kernel with a parameter of such a name keeps its own; so does one in Gluon, where layouts depend on them.
    """
    run, own = JITFunction.run, dict[str, dict[str, int]]()

    def run_with_options(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if self.is_gluon() or not options.keys().isdisjoint(self.arg_names):
            return run(self, *arguments, **keywords)
        own[self.__name__] = {name: keywords.get(name) or DEFAULT_OPTIONS[name] for name in options}
        return run(self, *arguments, **{**keywords, **options})

    with mock.patch.object(JITFunction, "run", run_with_options):
        yield own


def _run_all_configurations(self: Any, *arguments: Any, **keywords: Any) -> Any:
    """Launch an autotuned kernel with each configuration that its pruning leaves."""
    self.nargs = dict(zip(self.arg_names, arguments, strict=False))
    result = None
    for config in self.prune_configs(keywords) if len(self.configs) > 1 else self.configs:
        chosen = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **keywords, **chosen})
        result = self.fn.run(*arguments, **keywords, **chosen)
    self.nargs = None
    return result


def only_compiled_kernels(refuse: Callable[[], None]) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which ``refuse`` is called for a kernel that is not in Triton's cache; it must raise."""

    def make_ir(*arguments: Any, **keywords: Any) -> None:
        refuse()

    return mock.patch.object(ASTSource, "make_ir", make_ir)
