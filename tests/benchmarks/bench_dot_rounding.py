"""How a GPU rounds inside of ``tl.dot``: the slacks of a rounding model, measured.

For each operand type it prints the errors of the sums, how many bits below the last bit of the largest addend the other
addends keep, and whether the sum is rounded or truncated. Needs a GPU.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

import os
from typing import Final

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported, so that it compiles the kernels

import torch
import triton
import triton.language as tl

UNIT: Final = 2.0**-24
TYPES: Final[dict[str, tuple[torch.dtype, str]]] = {
    "float32 ieee": (torch.float32, "ieee"),
    "float32 tf32": (torch.float32, "tf32"),
    "float16": (torch.float16, "ieee"),
    "bfloat16": (torch.bfloat16, "ieee"),
    "float8_e4m3fn": (torch.float8_e4m3fn, "ieee"),
    "float8_e5m2": (torch.float8_e5m2, "ieee"),
}
KINDS: Final = ("normal", "one sign", "beside one", "falling")


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply [M, K] with [K, N] in one `tl.dot`, and add [M, N]."""
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    place = c_ptr + m[:, None] * N + n[None, :]
    tl.store(place, tl.dot(a, b, tl.load(place), input_precision=PRECISION))


def dot(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str) -> torch.Tensor:
    """Return the GPU's ``a @ b + c`` in float32."""
    result = c.clone()
    dot_kernel[(1,)](a, b, result, M=a.shape[0], K=a.shape[1], N=b.shape[1], PRECISION=precision)
    return result


def operands(kind: str, shape: tuple[int, int], dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Return numbers that the type and tf32 represent exactly."""
    numbers = torch.randn(shape, generator=random)
    if kind == "one sign":
        numbers = numbers.abs() + 0.5
    elif kind == "beside one":
        numbers = (numbers.abs() + 1.0) * 2.0**-6
        numbers[:, 0] = 8.0
    elif kind == "falling":
        numbers *= 2.0 ** (-torch.arange(shape[1]) / 8)
    return torch.from_numpy((numbers.numpy().view("u4") & 0xFFFFE000).view("f4")).to(dtype).cuda()


def largest_error(dtype: torch.dtype, precision: str, rows: int, width: int, kind: str, *, onto: bool) -> float:
    """Return the largest error of 20 dots of ``width`` products, in the bound's units per product."""
    random, worst = torch.Generator().manual_seed(width), 0.0
    for _ in range(20):
        a = operands(kind, (rows, width), dtype, random)
        b = operands(kind, (64, width), dtype, random).mT.contiguous()
        c = torch.randn(rows, 64, generator=random).cuda() * onto
        sizes = a.double().abs() @ b.double().abs() + c.double().abs()
        error = (dot(a, b, c, precision).double() - (a.double() @ b.double() + c.double())).abs()
        worst = max(worst, float((error / sizes).max()) / UNIT / (width + onto))
    return worst


def onto_256(dtype: torch.dtype, precision: str, rows: int, factors: tuple[float, float], count: int) -> float:
    """Return 256 and ``count`` products of the two factors, as summed by one dot."""
    a, b = torch.zeros(rows, 64), torch.zeros(64, 64)
    a[0, :count], b[:count, 0] = factors
    c = torch.full((rows, 64), 256.0, device="cuda")
    return float(dot(a.to(dtype).cuda(), b.to(dtype).cuda(), c, precision)[0, 0])


def kept_bits(dtype: torch.dtype, precision: str, rows: int) -> str:
    """Return how many bits below the last bit of the largest addend the others keep, at most 3."""
    for extra in range(3, -16, -1):
        exponent = 8 - 23 - extra
        factors = 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)
        if onto_256(dtype, precision, rows, factors, 2 ** max(0, extra)) > 256.0:
            return str(extra)
    return "fewer than -15"


def rounding(dtype: torch.dtype, precision: str, rows: int) -> str:
    """Return whether 256 plus three quarters of its last bit is rounded or truncated."""
    return "truncated" if onto_256(dtype, precision, rows, (1.5 * 2.0**-8, 2.0**-8), 1) == 256.0 else "rounded"


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        print("bench_dot_rounding: no GPU, nothing to measure")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print("largest errors in units of 2^-24 sum|a b| per product; in brackets with an addend")
    for name, (dtype, precision) in TYPES.items():
        for rows in (16, 64):
            try:
                measure(name, dtype, precision, rows)
            except (triton.CompilationError, RuntimeError) as error:
                print(f"{name}, {rows} rows: {type(error).__name__}: {error}")


def measure(name: str, dtype: torch.dtype, precision: str, rows: int) -> None:
    """Print the figures of one type for a number of rows: few rows use `mma`, 64 use `wgmma` where it exists."""
    kept, sums = kept_bits(dtype, precision, rows), rounding(dtype, precision, rows)
    print(f"{name}, {rows} rows: addends keep {kept} bits below the last, 3/4 of the last bit is {sums}", flush=True)
    for width in (32, 64) if name == "float32 ieee" else (32, 64, 128, 256):  # without tensor cores the dot is unrolled
        errors = [
            [largest_error(dtype, precision, rows, width, kind, onto=onto) for onto in (False, True)] for kind in KINDS
        ]
        shown = ", ".join(f"{kind} {a:.3g} ({b:.3g})" for kind, (a, b) in zip(KINDS, errors, strict=True))
        print(f"{width:8} products: {shown}", flush=True)


if __name__ == "__main__":
    main()
