"""Numpy's warnings on Inf and NaN, silenced while kernels run on the CPU: they make these by design."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def quiet() -> Iterator[None]:
    """Silence numpy's floating-point warnings for as long as the context lasts."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
