"""What makes lowering fast: it changes neither what comes out nor the process that it runs in."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from fuzz_attn.backends.simulator import LoweringError, lowering
from fuzz_attn.backends.simulator.interpreted import compiled, front_end_takes_interpreted
from fuzz_attn.backends.simulator.lowering import garbage_left_alone, lower
from tests.simulator.sample_kernels import flash_attention_kernel

SIGNATURE = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*fp16"),
    "scale": "fp32",
    **dict.fromkeys(("stride_head", "stride_token", "length"), "i32"),
    **dict.fromkeys(("HEAD_SIZE", "BLOCK_M", "BLOCK_N", "CAUSAL"), "constexpr"),
}
CONSTANTS = {"HEAD_SIZE": 32, "BLOCK_M": 16, "BLOCK_N": 16, "CAUSAL": True}


def _lowered(constants: dict[str, Any]) -> str:
    with front_end_takes_interpreted():
        return lower(compiled(flash_attention_kernel), SIGNATURE, constants)


def test_a_syntax_tree_used_again_lowers_to_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_TREES", {})
    first = _lowered(CONSTANTS)
    dumps = {source: _dump(tree) for source, tree in lowering._TREES.items()}
    assert len(dumps) > 3  # the kernel and the library's functions that it calls
    assert _lowered({**CONSTANTS, "CAUSAL": False}) != first
    assert _lowered(CONSTANTS) == first
    assert {source: _dump(tree) for source, tree in lowering._TREES.items() if source in dumps} == dumps


def _dump(tree: ast.Module) -> str:
    return ast.dump(tree, include_attributes=True)


def test_a_function_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    original: Callable[[Any], ast.Module] = JITFunction.parse

    def parse(self: Any) -> ast.Module:
        parsed.append(self.src)
        return original(self)

    monkeypatch.setattr(JITFunction, "parse", parse)
    monkeypatch.setattr(lowering, "_TREES", {})
    _lowered(CONSTANTS)
    _lowered(CONSTANTS)
    assert len(parsed) == len(set(parsed)) == len(lowering._TREES)
    assert JITFunction.parse is parse


def test_a_refused_kernel_leaves_nothing_patched() -> None:
    original = JITFunction.parse
    with pytest.raises(LoweringError):
        _lowered({**CONSTANTS, "BLOCK_M": 17})
    assert JITFunction.parse is original


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
