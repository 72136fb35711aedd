"""What a kernel's dots multiply is traced back through its IR."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
import triton.language as tl

from fuzz_attn.backends.cuda import arithmetic_in
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.ttir.kernel_arithmetic import Dot, Operand

KERNELS = "dot_kernels.py"

HALF, FP8 = torch.float16, torch.float8_e4m3fn


def _dots(kernels: Any, cache: torch.dtype = HALF, **constants: Any) -> tuple[Dot, ...]:
    """Return the two dots of the attention kernel for float16 queries."""
    chosen = {
        "QUERY_TYPE": tl.float16,
        "WEIGHT_TYPE": tl.float16,
        "SUM_TYPE": tl.float32,
        "SCALED": False,
        "NORMALISED": False,
        **constants,
    }
    q, k, v, out = torch.ones(16, 32).half(), *torch.ones(2, 64, 32).to(cache), torch.empty(16, 32)
    with simulate() as session:
        kernels.attention_kernel[(1,)](q, k, v, out, 0.5, 64, **chosen)
    (found,) = session.arithmetic
    return found.dots


def _rounded(operand: Operand) -> list[str]:
    return [rounding.element for rounding in operand.roundings]


def test_a_plain_kernel_rounds_only_the_weights(kernels: Any) -> None:
    scores, output = _dots(kernels)
    assert (scores.left.loaded, scores.left.loops, scores.right.loaded, scores.right.loops) == (
        ("f16",),
        0,
        ("f16",),
        1,
    )
    assert not _rounded(scores.left)
    assert not _rounded(scores.right)
    assert (output.left.exponential, output.right.exponential, scores.left.exponential) == (True, False, False)
    assert (output.left.loaded, output.right.loaded) == ((), ("f16",))
    assert _rounded(output.left) == ["f16"]
    assert all(operand.clear for dot in (scores, output) for operand in (dot.left, dot.right))
    assert (scores.total, output.total, scores.precision) == ("f32", "f32", "")


def test_a_rounding_is_at_its_line(kernels: Any) -> None:
    (rounding,) = _dots(kernels)[1].left.roundings
    assert "p.to(WEIGHT_TYPE)" in linecache.getline(rounding.location.file, rounding.location.line)


def test_a_scaled_query_is_rounded_after_its_scale(kernels: Any) -> None:
    query = _dots(kernels, SCALED=True)[0].left
    assert (query.scaled, _rounded(query), query.loaded) == (True, ["f16"], ("f16",))


def test_a_query_in_a_narrower_type_is_rounded_and_not_scaled(kernels: Any) -> None:
    query = _dots(kernels, QUERY_TYPE=tl.bfloat16)[0].left
    assert (query.scaled, _rounded(query)) == (False, ["bf16"])


def test_widening_a_cache_rounds_nothing(kernels: Any) -> None:
    scores, output = _dots(kernels, FP8)
    assert (scores.right.loaded, scores.right.element, _rounded(scores.right)) == (("f8E4M3FN",), "f16", [])
    assert (output.right.loaded, _rounded(output.right)) == (("f8E4M3FN",), [])


def test_weights_that_are_normalised_first_are_rounded_once(kernels: Any) -> None:
    weights = _dots(kernels, NORMALISED=True)[1].left
    assert (weights.exponential, _rounded(weights), weights.loaded, weights.clear) == (True, ["f16"], (), True)


@pytest.mark.parametrize("narrow", [tl.bfloat16, tl.float8e4nv])
def test_weights_are_rounded_to_the_type_that_the_kernel_says(kernels: Any, narrow: tl.dtype) -> None:
    names = {tl.bfloat16: "bf16", tl.float8e4nv: "f8E4M3FN"}
    assert _rounded(_dots(kernels, WEIGHT_TYPE=narrow)[1].left) == [names[narrow]]


def test_sums_in_float16_are_told(kernels: Any) -> None:
    scores, output = _dots(kernels, SUM_TYPE=tl.float16)
    assert (scores.total, output.total) == ("f32", "f16")


def test_sums_of_tiles_and_products_of_tiles_are_no_plain_operands(kernels: Any) -> None:
    q, k, out = torch.ones(32, 32).half(), torch.ones(32, 32).half(), torch.empty(16, 16)
    with simulate() as session:
        kernels.rotary_kernel[(1,)](q, k, out)
    (found,) = session.arithmetic
    (dot,) = found.dots
    assert not dot.left.clear
    assert dot.right.loaded == ("f16", "f16")


def test_the_files_of_a_compiled_kernel_say_the_same(kernels: Any, tmp_path: Path) -> None:
    simulator = Simulator()
    function = simulator.translations.translated(kernels.rotary_kernel)
    bound = simulator.bind(function, (torch.ones(32, 32).half(), torch.ones(32, 32).half(), torch.empty(16, 16)), {})
    file = tmp_path / "rotary_kernel.ttir"
    file.write_text(simulator.lowering.lower(function, bound.signature, bound.constants()))
    (dot,) = arithmetic_in({file.name: str(file)}).dots
    assert (dot.right.loaded, dot.total) == (("f16", "f16"), "f32")
