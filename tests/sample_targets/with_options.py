"""Right targets that also launch a kernel with options of their own, and one that is wrong whatever they are."""

# mypy: disable-error-code="no-untyped-def"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import Any

import triton.language as tl
from torch_attention import unified_attention  # type: ignore[import-not-found] # found beside this file, as a user's is
from triton.runtime import JITFunction


def add_nothing(x_ptr):
    """Write what is there."""
    tl.store(x_ptr, tl.load(x_ptr))


_add_nothing: Any = JITFunction(add_nothing)  # compiled, also in an interpreting process


def attend(**given: Any) -> None:
    """Compute attention, then launch a kernel that changes nothing."""
    unified_attention(**given)
    _add_nothing[(1,)](given["out"], num_warps=8)


def always_wrong(**given: Any) -> None:
    """Compute attention that is larger by 1."""
    unified_attention(**given)
    given["out"].add_(1.0)
    _add_nothing[(1,)](given["out"], num_warps=8)
