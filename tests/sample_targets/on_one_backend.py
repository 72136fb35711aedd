"""Targets with one mistake, which only Triton's interpreter shows, or which both it and the simulator show.

They compute in torch, in a fraction of the time that kernels take; what they read tells them the backend.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from torch_attention import unified_attention  # type: ignore[import-not-found] # in this folder


@wraps(unified_attention)
def sinks_ignored(**given: Any) -> None:
    """Ignore sinks, on every backend."""
    unified_attention(**{**given, "sinks": None})


@wraps(unified_attention)
def sinks_ignored_in_the_interpreter(**given: Any) -> None:
    """Ignore sinks where Triton interprets kernels: this stands for a mistake of a GPU's compiler."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    unified_attention(**{**given, "sinks": None} if interpreted else given)


@wraps(unified_attention)
def sinks_ignored_and_never_ending_in_the_simulator(**given: Any) -> None:
    """Ignore sinks in the interpreter, and do not end with them elsewhere."""
    if given.get("sinks") is not None and os.environ.get("TRITON_INTERPRET") != "1":
        while True:
            pass
    unified_attention(**{**given, "sinks": None})
