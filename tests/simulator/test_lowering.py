"""Lowering gives the same text each time, and changes nothing in the process that it runs in."""

from __future__ import annotations

from typing import Any

import pytest
from triton.compiler import code_generator

from fuzz_attn.simulator import LoweringError
from fuzz_attn.simulator.frontend import lowering
from fuzz_attn.simulator.frontend.interpreted import compiled
from fuzz_attn.simulator.frontend.lowering import lower
from tests.simulator.sample_kernels import flash_attention_kernel, misspelt_kernel

SIGNATURE = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*fp16"),
    "scale": "fp32",
    **dict.fromkeys(("stride_head", "stride_token", "length"), "i32"),
    **dict.fromkeys(("HEAD_SIZE", "BLOCK_M", "BLOCK_N", "CAUSAL"), "constexpr"),
}
CONSTANTS = {"HEAD_SIZE": 32, "BLOCK_M": 16, "BLOCK_N": 16, "CAUSAL": True}


def _lowered(constants: dict[str, Any]) -> str:
    positions: dict[tuple[int, ...], Any] = {(list(SIGNATURE).index(name),): value for name, value in constants.items()}
    return lower(compiled(flash_attention_kernel), SIGNATURE, positions)


def test_an_error_names_what_is_wrong_in_the_kernel() -> None:
    with pytest.raises(LoweringError, match=r"NameError\('offest is not defined'\)"):
        lower(compiled(misspelt_kernel), {"x_ptr": "*fp32"}, {})


def test_what_a_context_has_seen_does_not_show_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "LOWERINGS_IN_A_CONTEXT", 2)
    assert len({_lowered(CONSTANTS) for _ in range(5)}) == 1


def test_a_refused_kernel_leaves_nothing_patched() -> None:
    before = code_generator.CodeGenerator
    with pytest.raises(LoweringError):
        _lowered({**CONSTANTS, "BLOCK_M": 17})
    assert code_generator.CodeGenerator is before
