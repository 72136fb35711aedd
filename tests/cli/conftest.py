"""What the command line's tests share: replays that need no worker process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Return options of a replay that run targets in this process; modules of the test's folder are forgotten after it.

    A worker process takes seconds to import torch. These are for tests of what a replay selects, refuses and prints.
    """
    yield "--in-process", "--backend", "interpreter"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(f"{tmp_path}/"):
            del sys.modules[name]
