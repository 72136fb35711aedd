"""Races in storages that span far more addresses than memory: found as in small ones, with maps of the rows only."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.simulator.access_checks import RaceTracker, Shadows
from fuzz_attn.simulator.session import memory_of, watch_races

WIDTH, STRIDE, ROWS = 7, 50, 6


def places(random: np.random.Generator, count: int) -> Any:
    return random.integers(0, ROWS, count) * STRIDE + random.integers(0, WIDTH, count)


@pytest.mark.parametrize("seed", range(20))
def test_maps_of_rows_find_what_maps_of_all_elements_find(seed: int) -> None:
    random = np.random.default_rng(seed)
    whole, folded = RaceTracker(ROWS * STRIDE), RaceTracker((ROWS - 1) * STRIDE + WIDTH, STRIDE, WIDTH)
    starts = np.arange(ROWS, dtype=np.int64)[:3] * STRIDE
    kept = [tracker.store_rows(starts, 2, lambda: np.arange(3)) for tracker in (whole, folded)]
    assert kept == [True, True]
    clashes = 0
    for _ in range(8):
        offsets, programs = places(random, 4), random.integers(0, 3, 4)
        method = "load" if random.random() < 0.5 else "store"
        found = [np.array(getattr(tracker, method)(offsets, programs)) for tracker in (whole, folded)]
        np.testing.assert_array_equal(found[0], found[1])
        clashes += int(found[0].sum())
    assert clashes


def test_far_rows_are_tracked_in_little_memory() -> None:
    reserved = mmap.mmap(-1, 2**33, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    flat = torch.frombuffer(reserved, dtype=torch.float32)
    far = flat.as_strided((4, 2, 3), (2**29, 5, 1), 1000)
    before = int(Path("/proc/self/statm").read_text().split()[1])
    memories = [memory_of("far", far, Shadows()), memory_of("row", far[3], Shadows())]
    watch_races(memories, memories[:1])
    tracker = memories[0].tracker
    assert tracker is not None
    assert memories[1].tracker is tracker
    last = np.array([memories[1].shift + 6])
    assert memories[0].shift + 3 * 2**29 + 6 == last[0]
    tracker.store(last, np.array([0]))
    assert tracker.load(last, np.array([1])).tolist() == [True]
    assert tracker.load(last - 2**29, np.array([1])).tolist() == [False]
    assert int(Path("/proc/self/statm").read_text().split()[1]) - before < 2**12
