"""What makes lowering fast: it changes neither what comes out nor the process that it runs in."""

from __future__ import annotations

import ast
import contextlib
import gc
import resource
from collections.abc import Callable
from typing import Any

import pytest
from triton.compiler import code_generator
from triton.runtime.jit import JITFunction

from fuzz_attn.backends.simulator import LoweringError, front_end, lowering
from fuzz_attn.backends.simulator.interpreted import compiled
from fuzz_attn.backends.simulator.lowering import garbage_left_alone, lower
from fuzz_attn.backends.simulator.stack import with_room
from tests.simulator.sample_kernels import flash_attention_kernel, misspelt_kernel

SIGNATURE = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*fp16"),
    "scale": "fp32",
    **dict.fromkeys(("stride_head", "stride_token", "length"), "i32"),
    **dict.fromkeys(("HEAD_SIZE", "BLOCK_M", "BLOCK_N", "CAUSAL"), "constexpr"),
}
CONSTANTS = {"HEAD_SIZE": 32, "BLOCK_M": 16, "BLOCK_N": 16, "CAUSAL": True}


def _lowered(constants: dict[str, Any]) -> str:
    return lower(compiled(flash_attention_kernel), SIGNATURE, constants)


def test_a_syntax_tree_used_again_lowers_to_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end, "_TREES", {})
    first = _lowered(CONSTANTS)
    dumps = {source: _dump(tree) for source, tree in front_end._TREES.items()}
    assert len(dumps) > 3  # the kernel and the library's functions that it calls
    assert _lowered({**CONSTANTS, "CAUSAL": False}) != first
    assert _lowered(CONSTANTS) == first
    assert {source: _dump(tree) for source, tree in front_end._TREES.items() if source in dumps} == dumps


def _dump(tree: ast.Module) -> str:
    return ast.dump(tree, include_attributes=True)


def test_a_function_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    original: Callable[[Any], ast.Module] = JITFunction.parse

    def parse(self: Any) -> ast.Module:
        parsed.append(self.src)
        return original(self)

    monkeypatch.setattr(JITFunction, "parse", parse)
    monkeypatch.setattr(front_end, "_TREES", {})
    _lowered(CONSTANTS)
    _lowered(CONSTANTS)
    assert len(parsed) == len(set(parsed)) == len(front_end._TREES)
    assert JITFunction.parse is parse


class _Unhurried(code_generator.CodeGenerator):  # type: ignore[misc]  # Triton has no types
    """Triton's own generator, but for interpreted functions, as which tests decorate kernels."""

    def call_Function(self, node: Any, function: Any, arguments: Any, keywords: Any) -> Any:  # noqa: N802 - its name
        return super().call_Function(node, compiled(function), arguments, keywords)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, dict[str, str], dict[str, Any]], str]:
    """A `lower` that takes none of the short cuts."""

    def lowered(kernel: Any, signature: dict[str, str], constants: dict[str, Any]) -> str:
        target, backend, _ = lowering._backend()
        with monkeypatch.context() as patched:
            patched.setattr(code_generator, "CodeGenerator", _Unhurried)
            patched.setattr(lowering, "quick_front_end", contextlib.nullcontext)
            patched.setattr(lowering, "_backend", lambda: (target, backend, backend.parse_options({})))
            patched.setattr(lowering, "_context", lowering._context.__wrapped__)
            return lower(kernel, signature, constants)

    return lowered


def test_short_cuts_do_not_show_in_the_text(
    unhurried: Callable[[Any, dict[str, str], dict[str, Any]], str],
) -> None:
    kernel = compiled(flash_attention_kernel)
    for constants in (CONSTANTS, {**CONSTANTS, "HEAD_SIZE": 64, "CAUSAL": False}):
        assert lower(kernel, SIGNATURE, constants) == unhurried(kernel, SIGNATURE, constants)


def test_short_cuts_do_not_show_in_an_error(unhurried: Callable[[Any, dict[str, str], dict[str, Any]], str]) -> None:
    kernel = compiled(misspelt_kernel)
    messages = []
    for way in (lower, unhurried):
        with pytest.raises(LoweringError) as raised:
            way(kernel, {"x_ptr": "*fp32"}, {})
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "NameError('offest is not defined')" in messages[0]


def test_what_a_context_has_seen_does_not_show_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "LOWERINGS_IN_A_CONTEXT", 2)
    assert len({_lowered(CONSTANTS) for _ in range(5)}) == 1


def test_a_refused_kernel_leaves_nothing_patched() -> None:
    def front() -> tuple[Any, ...]:
        return JITFunction.parse, code_generator.CodeGenerator, code_generator.ASTFunction

    before = front()
    with pytest.raises(LoweringError):
        _lowered({**CONSTANTS, "BLOCK_M": 17})
    assert front() == before


def _up_and_down(depth: int) -> None:
    if depth:
        _up_and_down(depth - 1)


def _page_faults(depth: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        _up_and_down(8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before if not depth else _page_faults(depth - 1)


def test_frames_find_room() -> None:
    # Without it this is 200 for some depth, or no more than this in a Python that keeps the pieces of its stack.
    assert max(with_room(_page_faults, depth=depth) for depth in range(0, 200, 4)) < 100


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_afterwards(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(KeyError), garbage_left_alone():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
