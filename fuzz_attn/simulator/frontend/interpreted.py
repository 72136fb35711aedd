"""Kernels that were decorated for Triton's interpreter, as functions that the compiler's front end takes.

With TRITON_INTERPRET set, `@triton.jit` makes InterpretedFunctions, in Triton's own library too, and the front end
rejects them. Here each gets a JITFunction of the same Python function, which sees others as JITFunctions too.
"""

from __future__ import annotations

import contextlib
from typing import Any

from fuzz_attn.simulator.triton_compat import (
    TranslatedFunction,
    is_interpreted,
    translating_generator,
    using_generator,
)


class Translations:
    """The JITFunctions of InterpretedFunctions, one for each."""

    def __init__(self) -> None:
        self._known: dict[Any, TranslatedFunction] = {}
        self._generator = translating_generator(self.translated)

    def translated(self, value: Any) -> Any:
        """Return the JITFunction of an InterpretedFunction; any other value as it is."""
        if not is_interpreted(value):
            return value
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = TranslatedFunction(value, self.translated)
        return known

    def accepted(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which Triton's front end takes InterpretedFunctions.

        Any kernel may call one: Triton's own library is decorated when Triton is imported, before the kernel.
        """
        return using_generator(self._generator)
