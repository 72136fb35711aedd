"""Everything of Triton that its documentation does not promise. Seen to work with Triton 3.6 to 3.9.

`compiler_compat` has what compiling without a launch needs, `interpreter_compat` what the interpreter needs.
`tests/ttir/test_triton_compat.py` has a canary for each: run it first when a new Triton breaks something.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from unittest import mock

from triton import knobs
from triton._C.libtriton import ir, passes
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError, make_backend
from triton.compiler.errors import CompileTimeAssertionFailure, UnsupportedLanguageConstruct
from triton.errors import TritonError
from triton.language.semantic import IncompatibleTypeErrorImpl
from triton.runtime import Autotuner, Heuristics, InterpreterError, JITFunction, KernelInterface, OutOfResources
from triton.runtime.interpreter import InterpretedFunction

from fuzz_attn.errors import LoweringError, WarpsAskedError

TARGET: Final = ("cuda", 90, 32)
"""The device that kernels are lowered for; the simulator stops long before its instructions matter."""

# Kernels and their parameters.
Launch = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""What is called in place of a launch: with the kernel, its arguments by position and by name, and the grid."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel; `annotation` is the type that it names, or empty; `const` means a pointer to read.

    `is_specialised` parameters are constants for Triton where an integer is 1.
    """

    name: str
    is_constexpr: bool
    annotation: str
    is_const: bool
    is_specialised: bool = True


def parameters_of(kernel: Any) -> list[Parameter]:
    """Return the parameters of a JITFunction."""
    return [
        Parameter(
            parameter.name,
            bool(parameter.is_constexpr),
            parameter.annotation_type if isinstance(parameter.annotation_type, str) else "",
            bool(parameter.is_const),
            not parameter.do_not_specialize,
        )
        for parameter in kernel.params
    ]


def defaults_of(kernel: Any) -> dict[str, Any]:
    """Return the default values of a JITFunction's parameters."""
    parameters = kernel.signature.parameters.items()
    return {name: parameter.default for name, parameter in parameters if parameter.default is not parameter.empty}


def is_function(value: object) -> bool:
    """Return whether a value is a function decorated with `triton.jit`, for the compiler or the interpreter."""
    return isinstance(value, (JITFunction, InterpretedFunction))


def is_gluon(kernel: Any) -> bool:
    """Return whether a kernel is written in Gluon, Triton's language with layouts."""
    return bool(getattr(kernel, "is_gluon", lambda: False)())


def is_interpreted(value: object) -> bool:
    """Return whether a value is a function that was decorated for the interpreter."""
    return isinstance(value, InterpretedFunction)


def python_function(kernel: Any) -> Callable[..., Any]:
    """Return the Python function that was decorated."""
    function: Callable[..., Any] = kernel.fn
    return function


def source_of(kernel: Any) -> str:
    """Return the source text of a JITFunction, which a user may replace."""
    source: str = kernel.src
    return source


def source_digest(function: Any) -> str:
    """Return a digest of a decorated function's source and of all that it calls; the first one takes milliseconds."""
    if isinstance(function, InterpretedFunction):
        return _digest_of(function.fn)
    digest: str = function.cache_key
    return digest


def reinterpreted_type(value: Any) -> str | None:
    """Return the name in a signature of the type that `triton.reinterpret` gave a tensor; None for anything else."""
    if not (hasattr(value, "base") and hasattr(value, "dtype") and hasattr(value, "data_ptr")):
        return None
    return str(value.dtype).replace("uint", "u").replace("int", "i")


# Functions decorated for the interpreter.


class TranslatedFunction(JITFunction):  # type: ignore[misc]  # Triton has no types
    """A JITFunction of the Python function of an InterpretedFunction. `translate` turns one into the other."""

    hash: str | None

    def __init__(self, function: Any, translate: Callable[[Any], Any]) -> None:
        self._translate = translate
        super().__init__(function.fn, noinline=function.kwargs.get("noinline"))

    def get_capture_scope(self) -> dict[str, Any]:
        """Return the names that the function sees, with JITFunctions in place of InterpretedFunctions."""
        return {name: self._translate(value) for name, value in super().get_capture_scope().items()}

    @property
    def cache_key(self) -> str:
        """A digest of the function and of all that it calls; Triton resets `hash` when the source changes."""
        if self.hash is None:
            self.hash = hashlib.sha256((self.src + _digest_of(self.fn)).encode()).hexdigest()
        return self.hash

    def __hash__(self) -> int:
        return id(self)


def _code_generator() -> Any:
    """Return the module of Triton's walk, which imports all of Gluon: a process that lowers nothing needs neither."""
    from triton.compiler import code_generator  # noqa: PLC0415 - see above

    return code_generator


def translating_generator(translate: Callable[[Any], Any]) -> type:
    """Return Triton's walk over a function's syntax tree, with `translate` applied to each function it calls."""

    class Generator(_code_generator().CodeGenerator):  # type: ignore[misc]  # Triton has no types
        def call_Function(  # noqa: N802 - Triton's name
            self, node: ast.AST, function: Any, arguments: list[Any], keywords: dict[str, Any]
        ) -> Any:
            """Return the value of a call, also of a function that is found as an attribute of a module."""
            return super().call_Function(node, translate(function), [translate(one) for one in arguments], keywords)

    return Generator


def using_generator(generator: type) -> AbstractContextManager[object]:
    """Return a context in which Triton's front end uses this generator."""
    return mock.patch.object(_code_generator(), "CodeGenerator", generator)


def _digest_of(function: Any) -> str:
    """Return a digest of a Python function's source and of all that it refers to by name."""
    seen: dict[str, str] = {}
    pending = [function]
    while pending:
        current = pending.pop()
        name = f"{current.__module__}.{current.__qualname__}:{current.__code__.co_firstlineno}"
        if name in seen:
            continue
        seen[name] = inspect.getsource(current)
        for used in current.__code__.co_names:
            value = current.__globals__.get(used)
            if isinstance(value, InterpretedFunction):
                pending.append(value.fn)
            elif isinstance(value, (int, float, str)) or hasattr(value, "value"):
                seen[f"{name}.{used}"] = repr(value)
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()


# Lowering.


class FrontEnd:
    """Triton's front end for one target."""

    def __init__(self) -> None:
        self._target = GPUTarget(*TARGET)
        self._backend = make_backend(self._target)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Overflow checks would only add asserts, which Triton leaves out too, and what they compute.
            self._options = self._backend.parse_options({"sanitize_overflow": False})

    def new_context(self) -> Any:
        """Return a context of the compiler, which grows with each kernel that it lowers."""
        context = ir.context()
        ir.load_dialects(context)
        self._backend.load_dialects(context)
        return context

    def ttir(self, function: Any, signature: Mapping[str, Any], constants: Mapping[Any, Any], context: Any) -> str:
        """Return the text of a JITFunction's TTIR; raises whatever Triton raises for a kernel that it rejects."""
        source = ASTSource(function, signature=dict(signature), constexprs=dict(constants))
        text = self._lowered(source, context)
        if "tensordesc" in text or "tt.make_tensor_descriptor" in text:
            text = self._lowered(source, context, _replace_descriptors)
        return text

    def _lowered(self, source: Any, context: Any, change: Callable[[Any, Any], None] | None = None) -> str:
        """Return the text of a kernel's TTIR, made from its first IR after a change."""
        options, backend = self._options, self._backend
        implementation = backend.get_codegen_implementation(options)
        module = source.make_ir(
            self._target, _without_warps(options), implementation, backend.get_module_map(), context
        )
        if change is not None:
            change(module, context)
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, source.language)
        module = stages["ttir"](module, {})
        return module.str() if hasattr(module, "str") else str(module)


def _without_warps(options: Any) -> Any:
    """Return options of the compiler that raise WarpsAskedError for the number of warps."""

    def number(_: object) -> int:
        raise WarpsAskedError

    own = type(options)
    copy: Any = object.__new__(type(own.__name__, (own,), {"num_warps": property(number)}))
    copy.__dict__.update(options.__dict__)
    return copy


def _replace_descriptors(module: Any, context: Any) -> None:
    """Put pointers and masks in place of tensor descriptors, as Triton does for GPUs without hardware for them."""
    manager = ir.pass_manager(context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    manager.run(module, "replace_descriptors")


# Errors of the compiler.


def is_triton_error(error: BaseException) -> bool:
    """Return whether Triton's compiler or interpreter raised the exception, or a launch that lacks memory on chip."""
    return isinstance(error, TritonError)


def is_unknown_option(error: BaseException) -> bool:
    """Return whether a launch passes an option that the compiler for this GPU does not have, such as AMD's."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, KeyError) and bool(frames) and frames[-1].name == JITFunction._pack_args.__name__


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error of Triton and the exceptions that it reports, the one that was raised first at the end."""
    causes = [error]
    while isinstance(error, (CompilationError, InterpreterError)) and not isinstance(error, _COMPLETE):
        inner = error.__cause__ or error.__context__
        if inner is None or inner in causes:
            break
        causes.append(error := inner)
    return causes


_COMPLETE: Final = (CompileTimeAssertionFailure, UnsupportedLanguageConstruct)
"""Errors of the compiler that report no other exception."""

STATED: Final = (
    *(AssertionError, ValueError, TypeError, NotImplementedError, IncompatibleTypeErrorImpl),
    *(OutOfResources, CompilationError),
)
"""Exceptions with which Triton's compiler states what it does not allow. Others are defects, such as a NameError."""


STATIC_ASSERT: Final = "static_assert"
"""The name of a failed `static_assert` of a kernel, whatever Triton raises for it."""


def name_of(error: BaseException) -> str:
    """Return the name of an exception of the compiler."""
    return STATIC_ASSERT if isinstance(error, CompileTimeAssertionFailure) else type(error).__name__


def reason_of(error: BaseException) -> str:
    """Return the text of an exception, without the source that Triton adds to it."""
    return str(error.error_message or "") if isinstance(error, CompilationError) else str(error)


@dataclass(frozen=True, slots=True)
class Position:
    """A statement of a kernel, by file, line and text."""

    file: str
    line: int
    source: str


def compiled_at(error: BaseException) -> list[Position]:
    """Return where Triton's front end was when it raised an exception, the innermost function first."""
    generators: dict[int, Any] = {}
    walk = _code_generator().CodeGenerator
    traceback = error.__traceback__
    while traceback is not None:
        generator = traceback.tb_frame.f_locals.get("self")
        if isinstance(generator, walk):
            generators[id(generator)] = generator
        traceback = traceback.tb_next
    innermost_first = reversed(generators.values())
    return [_position(generator) for generator in innermost_first if hasattr(generator.cur_node, "lineno")]


def _position(generator: Any) -> Position:
    line, lines = generator.cur_node.lineno, generator.jit_fn.src.splitlines()
    source = lines[line - 1].strip() if line <= len(lines) else ""
    return Position(generator.file_name, generator.begin_line + line, source)


# Launches.


@contextlib.contextmanager
def launches_replaced(launch: Launch) -> Iterator[None]:
    """Call `launch` wherever Triton would launch a kernel, until the context is left.

    An autotuner takes its first configuration instead of a benchmark. A warm-up runs nothing.
    """
    target = GPUTarget(*TARGET)

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> Compiled:
        if not warmup:
            for hook in self.pre_run_hooks:
                hook(*arguments, **keywords)
            launch(self, arguments, keywords, grid)
        return Compiled(self, keywords, launch, target)

    replacements = [(JITFunction, run), (InterpretedFunction, run), (Autotuner, _run_first_configuration)]
    originals = [(owner, owner.__dict__["run"]) for owner, _ in replacements]
    try:
        for owner, replacement in replacements:
            owner.run = replacement
        yield
    finally:
        for owner, original in originals:
            owner.run = original


@dataclass(frozen=True, slots=True)
class LaunchedConfiguration:
    """The configuration that an autotuned kernel was launched with, by its place among all of its autotuner.

    `left` are the places of those that pruning left. `words` have only what differs between configurations.
    """

    kernel: str
    place: int
    left: tuple[int, ...]
    words: str


def configurations_in(value: object) -> int:
    """Return how many configurations a decorated function has, also one with heuristics; 0 without an autotuner."""
    while value is not None and not isinstance(value, Autotuner):
        value = getattr(value, "fn", None) if isinstance(value, KernelInterface) else None
    return len(value.configs) if isinstance(value, Autotuner) else 0


@contextlib.contextmanager
def configuration_chosen(number: int) -> Iterator[list[LaunchedConfiguration]]:
    """Launch autotuned kernels with one configuration each, without a benchmark, until the context is left.

    It is that of a number among those that pruning leaves, counted round and round. Yield what was launched.
    """
    launched: list[LaunchedConfiguration] = []

    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return _run_configuration(self, number, launched, arguments, keywords)

    with mock.patch.object(Autotuner, "run", run):
        yield launched


def _run_first_configuration(self: Any, *arguments: Any, **keywords: Any) -> Any:
    return _run_configuration(self, 0, [], arguments, keywords)


def _run_configuration(
    self: Any,
    number: int,
    launched: list[LaunchedConfiguration],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    """Launch an autotuned kernel with a configuration that its pruning leaves, or the next one that compiles.

    As in Triton, only a `static_assert` of the kernel and too little memory on chip make it go on to the next one.
    """
    self.nargs = dict(zip(self.arg_names, arguments, strict=False))
    left = self.prune_configs(keywords) if len(self.configs) > 1 else self.configs
    every = [*self.configs, *(config for config in left if config not in self.configs)]  # pruning may make new ones
    places = tuple(map(every.index, left))
    number %= len(left)
    for tried, config in enumerate((*left[number:], *left[:number]), 1):
        self.best_config = config
        chosen = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **keywords, **chosen})
        kernel = python_function(_innermost(self)).__name__
        launched.append(LaunchedConfiguration(kernel, every.index(config), places, _differing(every, config)))
        try:
            result = self.fn.run(*arguments, **keywords, **chosen)
        except (LoweringError, OutOfResources, CompileTimeAssertionFailure) as error:
            skipped = not isinstance(error, LoweringError) or error.error in (STATIC_ASSERT, OutOfResources.__name__)
            if not skipped or tried == len(left):
                raise
            launched.pop()
        else:
            break
    self.nargs = None
    return result


def _innermost(kernel: Any) -> Any:
    """Return the decorated function inside autotuners and heuristics."""
    while isinstance(kernel, (Autotuner, Heuristics)):
        kernel = kernel.fn
    return kernel


def _differing(configs: list[Any], config: Any) -> str:
    """Return what of a configuration is not the same in all of them: ``BLOCK_N=128, num_warps=2``."""
    every = [each.all_kwargs() for each in configs]
    own = config.all_kwargs().items()
    return ", ".join(f"{name}={value}" for name, value in own if any(each.get(name) != value for each in every))


@contextlib.contextmanager
def launches_counted(count: Callable[[], None]) -> Iterator[None]:
    """Call `count` before each launch of a kernel, until the context is left."""

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
            count()
            return original(self, *arguments, **keywords)

        return run

    with contextlib.ExitStack() as stack:
        for owner in (JITFunction, InterpretedFunction):
            stack.enter_context(mock.patch.object(owner, "run", counting(owner.__dict__["run"])))
        yield


@contextlib.contextmanager
def compilations_heard(hear: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Call `hear` with what Triton tells of each kernel that it has compiled or loaded, until the context is left.

    Another listener stays in effect.
    """
    before = knobs.compilation.listener

    def listen(**event: Any) -> None:
        hear(event)
        if before is not None:
            before(**event)

    knobs.compilation.listener = listen
    try:
        yield
    finally:
        knobs.compilation.listener = before


@contextlib.contextmanager
def compilations_announced(announce: Callable[[bool], None]) -> Iterator[None]:
    """Call `announce` before a kernel is compiled, with False, and afterwards, with True, until the context is left.

    Triton's own hook before a compilation is no substitute: it serialises the constants of the kernel, which fails for
    a constant that is a function.
    """
    compile_kernel = JITFunction._do_compile

    @functools.wraps(compile_kernel)
    def announcing(self: Any, *arguments: Any, **keywords: Any) -> Any:
        announce(False)
        try:
            return compile_kernel(self, *arguments, **keywords)
        finally:
            announce(True)

    with mock.patch.object(JITFunction, "_do_compile", announcing):
        yield


@dataclass(frozen=True, slots=True)
class Metadata:
    """The launch options of a kernel, and what a kernel of this kind uses of a GPU."""

    name: str
    target: Any
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None
    launch_pdl: bool = False
    launch_cooperative_grid: bool = False
    shared: int = 16384
    warp_size: int = 32


OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid")
"""Launch options that a kernel's metadata repeat."""


@dataclass(frozen=True)
class Compiled:
    """A stand-in for a compiled kernel. Nothing is compiled: its figures are typical ones.

    `keywords` are those of the launch or warm-up that made it. Their constants hold where a later launch leaves them
    out.
    """

    kernel: Any
    keywords: Mapping[str, Any]
    launch: Launch
    target: Any
    n_regs: int = 64
    n_spills: int = 0
    n_max_threads: int = 1024

    @cached_property
    def metadata(self) -> Metadata:
        """The options of the launch or warm-up, and typical figures."""
        options = {name: self.keywords[name] for name in OPTIONS if self.keywords.get(name) is not None}
        return Metadata(self.name, self.target, **options)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.fn.__name__)

    def _init_handles(self) -> None:
        """Do nothing: Triton loads the kernel here, and programs call this before they read its figures."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Return a function that launches the kernel on a grid."""

        def launch(*arguments: Any, **keywords: Any) -> None:
            self.launch(self.kernel, arguments, {**self.keywords, **keywords}, grid)

        return launch
