"""Everything of torch that its documentation does not promise. Seen to work with torch 2.11 to 2.13.

`tests/simulator/test_torch_compat.py` has a canary for each name.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook untyped
    """A mode through which every operator of torch passes while it is active; subclasses say what happens to it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled under this mode, and torch's guard against it costs more than the mode."""
        return False


def modes_disabled() -> AbstractContextManager[None]:
    """Return a context in which torch's operators pass through no mode."""
    context: AbstractContextManager[None] = torch._C._DisableTorchDispatch()
    return context


@functools.lru_cache(maxsize=4096)
def written_arguments(operator: Any) -> tuple[tuple[int, str], ...]:
    """Return positions and names of the arguments that an operator of torch writes to."""
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
