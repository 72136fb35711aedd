"""A canary for each name of Triton that its documentation does not promise; Triton 3.6 to 3.9 have them all."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, code_generator, make_backend
from triton.runtime import Autotuner, JITFunction, OutOfResources, interpreter
from triton.runtime.interpreter import InterpretedFunction

from fuzz_attn.ttir import interpreter_compat, triton_compat
from fuzz_attn.ttir.triton_compat import FrontEnd, Parameter, TranslatedFunction


def probe(x_ptr: tl.const, count: tl.int32, flag=True, BLOCK: tl.constexpr = 4):
    tl.store(x_ptr + tl.arange(0, BLOCK), count)


def _compiled(function: Any) -> Any:
    """Return a JITFunction, also where TRITON_INTERPRET is set."""
    return JITFunction(function)


PARAMETERS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "JITFunction.run": (JITFunction.run, ["self", "args", "grid", "warmup", "kwargs"]),
    "JITFunction._do_compile": (
        JITFunction._do_compile,
        ["self", "key", "signature", "device", "constexprs", "options", "attrs", "warmup"],
    ),
    "InterpretedFunction.run": (InterpretedFunction.run, ["self", "args", "grid", "warmup", "kwargs"]),
    "Autotuner.run": (Autotuner.run, ["self", "args", "kwargs"]),
    "Autotuner.prune_configs": (Autotuner.prune_configs, ["self", "kwargs"]),
    "Config.all_kwargs": (triton.Config.all_kwargs, ["self"]),
    "ASTSource": (ASTSource.__init__, ["self", "fn", "signature", "constexprs", "attrs"]),
    "ASTSource.make_ir": (
        ASTSource.make_ir,
        ["self", "target", "options", "codegen_fns", "module_map", "context"],
    ),
    "make_backend": (make_backend, ["target"]),
    "CodeGenerator.call_Function": (
        code_generator.CodeGenerator.call_Function,
        ["self", "node", "fn", "args", "kws"],
    ),
    "JITFunction.parse": (JITFunction.parse, ["self"]),
    "JITFunction.get_capture_scope": (JITFunction.get_capture_scope, ["self"]),
    "_convert_float": (interpreter._convert_float, ["input", "input_dtype", "output_dtype", "rounding_mode"]),
    "InterpreterBuilder.cast_impl": (interpreter.InterpreterBuilder.cast_impl, ["self", "src", "dst_type"]),
    "InterpreterBuilder.binary_op": (interpreter.InterpreterBuilder.binary_op, ["self", "lhs", "rhs", "op"]),
    "InterpreterBuilder.unary_op": (interpreter.InterpreterBuilder.unary_op, ["self", "arg", "op"]),
    "_patch_lang": (interpreter._patch_lang, ["fn"]),
    "_LangPatchScope": (interpreter._LangPatchScope.__init__, ["self"]),
    "_LangPatchScope.restore": (interpreter._LangPatchScope.restore, ["self"]),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_function_takes_the_parameters_that_it_is_called_with(name: str) -> None:
    function, expected = PARAMETERS[name]
    assert list(inspect.signature(function).parameters) == expected, f"{name} of Triton {triton.__version__} differs"


def test_a_dot_product_of_the_interpreter_takes_both_factors_first() -> None:
    assert list(inspect.signature(interpreter.InterpreterBuilder.create_dot).parameters)[:3] == ["self", "a", "b"]


def test_the_interpreter_has_an_error_of_its_own() -> None:
    assert issubclass(interpreter_compat.InterpreterError, Exception)


def test_the_interpreter_makes_a_block_of_a_scalar_with_a_block_type() -> None:
    splat = interpreter.InterpreterBuilder.create_splat
    assert list(inspect.signature(splat).parameters) == ["self", "ret_ty", "arg"]


def test_the_interpreter_changes_the_syntax_tree_of_each_function() -> None:
    assert isinstance(interpreter.FunctionRewriter.ast_transformer, interpreter_compat.SyntaxTransformer)
    assert isinstance(InterpretedFunction.rewritten_fn, dict)
    assert callable(interpreter_compat.SyntaxTransformer.visit_Assign)


def test_a_tensor_handle_has_data_and_a_type() -> None:
    data = np.ones(1, np.float32)
    handle = interpreter_compat.TensorHandle(data, tl.float32)
    assert handle.data is data
    assert handle.dtype == tl.float32


def test_the_parts_of_the_language_that_the_interpreter_patches_exist() -> None:
    assert all(vars(part) for part in interpreter_compat.LANGUAGE)


def test_kernels_have_parameters_and_a_source() -> None:
    kernel = _compiled(probe)
    assert triton_compat.parameters_of(kernel) == [
        Parameter("x_ptr", is_constexpr=False, annotation="", is_const=True),
        Parameter("count", is_constexpr=False, annotation="i32", is_const=False),
        Parameter("flag", is_constexpr=False, annotation="", is_const=False),
        Parameter("BLOCK", is_constexpr=True, annotation="", is_const=False),
    ]
    assert triton_compat.defaults_of(kernel) == {"flag": True, "BLOCK": 4}
    assert triton_compat.python_function(kernel) is probe
    assert triton_compat.source_of(kernel).startswith("def probe(")
    assert kernel.pre_run_hooks == []
    assert len(triton_compat.source_digest(kernel)) == 64


def test_an_interpreted_function_has_its_python_function_and_hooks() -> None:
    function = InterpretedFunction(probe, noinline=None)
    assert function.fn is probe
    assert function.kwargs == {"noinline": None}
    assert function.pre_run_hooks == []
    assert TranslatedFunction(function, lambda value: value).fn is probe


def test_an_autotuner_has_its_configurations() -> None:
    tuner = triton.autotune(configs=[triton.Config({"BLOCK": 4})], key=["count"])(_compiled(probe))
    assert isinstance(tuner, Autotuner)
    assert [config.all_kwargs()["BLOCK"] for config in tuner.configs] == [4]
    assert (tuner.configs[0].pre_hook, tuner.arg_names) == (None, ["x_ptr", "count", "flag", "BLOCK"])


def test_an_autotuner_launches_the_chosen_configuration_of_those_that_pruning_leaves() -> None:
    hooked: list[int] = []
    configs = [triton.Config({"BLOCK": block}, num_warps=2) for block in (4, 8, 16)]
    configs.append(triton.Config({"BLOCK": 32}, num_warps=4, pre_hook=lambda values: hooked.append(values["BLOCK"])))
    pruning = {"early_config_prune": lambda configs, named_args, **kwargs: configs[1:]}
    tuner: Any = triton.autotune(configs, key=[], prune_configs_by=pruning)(_compiled(probe))
    blocks: list[tuple[int, int]] = []

    def launch(kernel: Any, arguments: Any, keywords: Any, grid: Any) -> None:
        blocks.append((keywords["BLOCK"], keywords["num_warps"]))

    with triton_compat.launches_replaced(launch):
        for number in (0, 1, 2, 5):
            with triton_compat.configuration_chosen(number) as launched:
                tuner[1](torch.zeros(4), 3)
            (found,) = launched
            assert (found.kernel, found.left) == ("probe", (1, 2, 3))
        tuner[1](torch.zeros(4), 3)  # no choice is the first one
    assert found.words == "BLOCK=32, num_warps=4"
    assert found.place == 3
    assert hooked == [32, 32]
    assert blocks == [(8, 2), (16, 2), (32, 4), (32, 4), (8, 2)]


def test_a_configuration_that_does_not_fit_a_gpu_is_skipped_as_triton_skips_it() -> None:
    tuner: Any = triton.autotune([triton.Config({"BLOCK": block}) for block in (4, 8, 16)], key=[])(_compiled(probe))

    def launch(kernel: Any, arguments: Any, keywords: Any, grid: Any) -> None:
        if keywords["BLOCK"] >= 8:
            raise OutOfResources(2**20, 2**10, "shared memory")

    with triton_compat.launches_replaced(launch), triton_compat.configuration_chosen(1) as launched:
        tuner[1](torch.zeros(4), 3)
    assert [each.place for each in launched] == [0]


def test_an_option_of_another_gpus_compiler_is_told_from_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else Triton 3.9 warns
    backend = make_backend(GPUTarget("cuda", 90, 32))
    with pytest.raises(KeyError) as unknown:
        _compiled(probe)._pack_args(backend, {"waves_per_eu": 2}, {}, [], None)
    assert triton_compat.is_unknown_option(unknown.value)
    with pytest.raises(KeyError) as other:
        raise KeyError("waves_per_eu")
    assert not triton_compat.is_unknown_option(other.value)


def test_the_front_end_gives_the_text_of_the_first_ir() -> None:
    front_end = FrontEnd()

    def translate(value: Any) -> Any:
        return TranslatedFunction(value, translate) if triton_compat.is_interpreted(value) else value

    signature = {"x_ptr": "*i32", "count": "i32", "flag": "u1", "BLOCK": "constexpr"}
    with triton_compat.using_generator(triton_compat.translating_generator(translate)):
        text = front_end.ttir(_compiled(probe), signature, {(3,): 4}, front_end.new_context())
    assert "tt.func public @probe" in text
    assert "tt.store" in text
    assert "#loc" in text, "findings name source lines"


@triton.jit
def described(x_ptr, SIZE: tl.constexpr):
    descriptor = tl.make_tensor_descriptor(x_ptr, [SIZE, SIZE], [SIZE, 1], [16, 16])
    descriptor.store([0, 0], descriptor.load([0, 0]))


def test_the_front_end_replaces_tensor_descriptors() -> None:
    front_end = FrontEnd()
    signature = {"x_ptr": "*fp32", "SIZE": "constexpr"}
    text = front_end.ttir(_compiled(described.fn), signature, {(1,): 32}, front_end.new_context())
    assert "descriptor" not in text.partition("#loc")[0]
    assert text.count("tt.load") == text.count("tt.store ") == 1


def test_a_reinterpreted_tensor_has_its_tensor_and_type() -> None:
    tensor = torch.zeros(4)
    wrapper = triton.reinterpret(tensor, tl.int32)
    assert wrapper.base is tensor
    assert callable(wrapper.data_ptr)
    assert triton_compat.reinterpreted_type(wrapper) == "i32"
    assert triton_compat.reinterpreted_type(tensor) is None


def test_a_listener_of_compilations_can_be_set() -> None:
    assert hasattr(triton.knobs.compilation, "listener")
    assert triton.knobs.CompileTimes(1, [("ttir", 2)], 3).total == 6
