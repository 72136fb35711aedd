"""A target that launches a kernel with hardly any operation of an attention kernel: it copies a few elements of q."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def copying_kernel(source_ptr, target_ptr, SIZE: tl.constexpr):
    elements = tl.arange(0, SIZE)
    tl.store(target_ptr + elements, tl.load(source_ptr + elements))


def unified_attention(**given: Any) -> None:
    """Copy the first elements of q to the output."""
    copying_kernel[(1,)](given["q"], given["out"], SIZE=8)
