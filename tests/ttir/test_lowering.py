"""Lowering gives the same text each time, and changes nothing in the process that it runs in."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from triton.compiler import code_generator

from fuzz_attn.errors import LoweringError
from fuzz_attn.ttir.lowering import Lowering, Translations
from fuzz_attn.ttir.triton_compat import FrontEnd

KERNELS = "sample_kernels.py"
SIGNATURE = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*fp16"),
    "scale": "fp32",
    **dict.fromkeys(("stride_head", "stride_token", "length"), "i32"),
    **dict.fromkeys(("HEAD_SIZE", "BLOCK_M", "BLOCK_N", "CAUSAL"), "constexpr"),
}
CONSTANTS = {"HEAD_SIZE": 32, "BLOCK_M": 16, "BLOCK_N": 16, "CAUSAL": True}


def _lowered(lowering: Lowering, kernel: Any, signature: dict[str, str], constants: dict[str, Any]) -> str:
    positions: dict[tuple[int, ...], Any] = {(list(signature).index(name),): value for name, value in constants.items()}
    return lowering.lower(Translations().translated(kernel), signature, positions)


def test_an_error_names_what_is_wrong_in_the_kernel(kernels: Any) -> None:
    with pytest.raises(LoweringError, match=r"NameError\('offest is not defined'\)"):
        _lowered(Lowering(Translations()), kernels.misspelt_kernel, {"x_ptr": "*fp32"}, {})


def test_a_new_context_gives_the_same_text(kernels: Any) -> None:
    lowering = Lowering(Translations(), lowerings_in_a_context=2)
    texts = {_lowered(lowering, kernels.flash_attention_kernel, SIGNATURE, CONSTANTS) for _ in range(5)}
    assert len(texts) == 1
    assert lowering.count == 5


def test_threads_lower_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[int] = []

    def ttir(self: FrontEnd, function: Any, *others: Any) -> str:
        inside.append(+1)
        time.sleep(0.05)
        inside.append(-1)
        return ""

    monkeypatch.setattr(FrontEnd, "ttir", ttir)
    lowering = Lowering(Translations())
    threads = [threading.Thread(target=lowering.lower, args=(None, {}, {})) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == [1, -1] * 3


def test_a_rejected_kernel_leaves_nothing_patched(kernels: Any) -> None:
    before = code_generator.CodeGenerator
    with pytest.raises(LoweringError):
        _lowered(Lowering(Translations()), kernels.flash_attention_kernel, SIGNATURE, {**CONSTANTS, "BLOCK_M": 17})
    assert code_generator.CodeGenerator is before
