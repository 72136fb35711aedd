"""What the front end's tests share: the simulator's sample kernels, loaded by path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

KERNELS = Path(__file__).parents[1] / "simulator" / "kernels"
Loader = Callable[[Path], ModuleType]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let torch draw the same numbers in each test, whichever ran before it in the process."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest, module_at: Loader) -> ModuleType:
    """Return the module of kernels that the test module names in KERNELS."""
    return module_at(KERNELS / request.module.KERNELS)
