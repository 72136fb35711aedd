"""Streams: seeded numbers that never change, with the documented distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.inputs.random_bits import Integers, Stream

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
SEEDS = st.integers(0, 2**53 - 1)
MANY = 2**18


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.corrcoef(left, right)[0, 1])


def test_golden_numbers() -> None:
    # A change here changes the tensors of every saved counterexample.
    assert Stream(0, 1).raw(2).tolist() == [15003734204198539638, 13859618513508960101]
    assert Stream(2**53 - 1, 24).raw(1).tolist() == [13763074535496284969]
    assert Stream(7, 11).normals(4).view(np.uint32).tolist() == [3220370930, 3217053152, 1047692193, 3201771319]
    assert Stream(7, 12).signs(8).tolist() == [-1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, -1.0]
    assert Stream(7, 13).below(1000, 6).tolist() == [971, 409, 362, 640, 196, 798]
    assert Stream(7, 14).permutation(10).tolist() == [3, 8, 6, 2, 7, 4, 0, 9, 1, 5]


@pytest.mark.parametrize("seed", [0, 1, 2**53 - 1])
def test_normals_have_mean_0_and_variance_1(seed: int) -> None:
    normals = Stream(seed, 3).normals(MANY).astype(np.float64)
    # Five standard errors; the sum of four uniforms has a kurtosis of 2.7.
    assert abs(normals.mean()) < 5 / math.sqrt(MANY)
    assert abs(normals.var() - 1) < 5 * math.sqrt(1.7 / MANY)


def test_normals_are_standardised_exactly() -> None:
    # The largest sum of four uniforms lies (4 * 65535 - mean) / deviation from the mean, by hand 3.464.
    deviation = math.sqrt(4 * (65536**2 - 1) / 12)
    normals = Stream(5, 3).normals(MANY)
    words = Stream(5, 3).raw(MANY)
    sums = sum(((words >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.float64) for shift in (0, 16, 32, 48))
    expected = (sums - 2 * 65535) / deviation
    assert float(np.abs(normals - expected).max()) < 3.47 * 2.0**-22
    assert float(np.abs(normals).max()) < 3.47


def test_normals_are_nearly_normal() -> None:
    normals = np.sort(Stream(9, 3).normals(MANY).astype(np.float64))
    quantiles = {-2.0: 0.02275, -1.0: 0.15866, 0.0: 0.5, 1.0: 0.84134, 2.0: 0.97725}
    for point, share in quantiles.items():
        # The sum of four uniforms differs from the normal distribution by less than 0.009 everywhere.
        assert abs(np.searchsorted(normals, point) / MANY - share) < 0.009 + 5 / math.sqrt(MANY)


@pytest.mark.parametrize("purposes", [(1, 2), (11, 12), (12, 13), (0, 2**32)])
def test_purposes_are_independent(purposes: tuple[int, int]) -> None:
    left, right = (Stream(4, purpose).normals(MANY) for purpose in purposes)
    assert abs(correlation(left, right)) < 5 / math.sqrt(MANY)


@pytest.mark.parametrize("seeds", [(0, 1), (1, 2), (2**32, 2**52)])
def test_seeds_are_independent(seeds: tuple[int, int]) -> None:
    left, right = (Stream(seed, 11).normals(MANY) for seed in seeds)
    assert abs(correlation(left, right)) < 5 / math.sqrt(MANY)


def test_neighbours_in_a_stream_are_independent() -> None:
    normals = Stream(4, 11).normals(MANY)
    assert abs(correlation(normals[1:], normals[:-1])) < 5 / math.sqrt(MANY)


def test_stream_continues_where_it_stopped() -> None:
    parts = Stream(6, 1)
    assert [*parts.raw(3).tolist(), *parts.raw(2).tolist()] == Stream(6, 1).raw(5).tolist()


@QUIET
@given(SEEDS, st.integers(0, 300))
def test_permutation_is_one(seed: int, count: int) -> None:
    assert sorted(Stream(seed, 1).permutation(count).tolist()) == list(range(count))


def test_permutations_of_three_are_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(3000):
        order = tuple(Stream(seed, 1).permutation(3).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert all(abs(count - 500) < 5 * math.sqrt(500) for count in counts.values())


@QUIET
@given(SEEDS, st.integers(1, 2**31), st.integers(0, 50))
def test_below_is_in_range(seed: int, bound: int, count: int) -> None:
    numbers = Stream(seed, 1).below(bound, count)
    assert numbers.shape == (count,)
    assert ((numbers >= 0) & (numbers < bound)).all()


@pytest.mark.parametrize("bound", [2, 7, 17])
def test_below_reaches_all_equally(bound: int) -> None:
    counts = np.bincount(Stream(3, 1).below(bound, MANY))
    assert len(counts) == bound
    assert (abs(counts - MANY / bound) < 5 * math.sqrt(MANY / bound)).all()


def test_below_takes_a_bound_for_each_number() -> None:
    bounds: Integers = np.arange(1, 41)[:, None]
    numbers = Stream(3, 1).below(bounds, 40, 500)
    assert ((numbers >= 0) & (numbers < bounds)).all()
    assert (numbers.max(axis=1) == np.arange(40)).all()


def test_signs_are_as_often_positive() -> None:
    signs = Stream(3, 1).signs(64, MANY // 64)
    assert signs.shape == (64, MANY // 64)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 5 / math.sqrt(MANY)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 5)])
def test_empty_shapes_take_no_numbers(shape: tuple[int, ...]) -> None:
    stream = Stream(1, 1)
    assert stream.normals(*shape).shape == shape
    assert stream.below(3, *shape).shape == shape
    assert stream.raw(1).tolist() == Stream(1, 1).raw(1).tolist()
