"""Many compile keys are tried side by side: the schedule of a run on a GPU, with a clock for compilers and workers.

Each fork and each worker takes a core; where there are more of them than cores, all are slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.serving import looks_like_serving, serves
from fuzz_attn.engine.compiler import REST_NICE, START_NICE, forks_wanted, niceness
from fuzz_attn.engine.rounds import CASES, ReadyRound, Rounds
from fuzz_attn.engine.schedule import play_shared_round
from fuzz_attn.operations.attention.drawing import shared_round
from fuzz_attn.strategies.compile_keys import key_pool, value_pairs
from fuzz_attn.targets.built_in import built_in

DOMAIN = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
TICK = 0.1
KERNELS = (1, 2, 2, 3, 3)
"""Of a round, as the first visits of our own kernels have them: 2.2 in the mean."""


@dataclass
class Machine:
    """A run of so many workers, each of which judges 1,000 / 16 cases a second where it has a core."""

    folder: Path
    cores: int
    workers: int
    seconds_of_a_kernel: float
    cases: Counter[int] = field(default_factory=Counter)
    """By the number of a round."""
    idle: float = 0.0
    """The seconds in which a worker had no case."""
    most_forks: int = 0

    def run(self, seconds: float) -> None:
        """Let so many seconds pass."""
        stage, random, numbers = Rounds(self.folder), Random(1), iter(range(10**6))
        stage.make()
        shards = [Rounds(self.folder) for _ in range(self.workers)]
        playing: list[tuple[int, float]] = [(-1, 0.0)] * self.workers
        forks: dict[int, float] = {}
        for _ in range(round(seconds / TICK)):
            for number in self._new_forks(stage, forks, numbers):
                forks[number] = self.seconds_of_a_kernel * KERNELS[number % len(KERNELS)]
            self.most_forks = max(self.most_forks, len(forks))
            speed = TICK * min(1.0, self.cores / (len(forks) + self.workers))
            for number in list(forks):
                forks[number] -= speed
                if forks[number] <= 0:
                    del forks[number]
                    stage.set_ready(ReadyRound(number, complete=True))
            for worker, shard in enumerate(shards):
                playing[worker] = self._played(shard, random, *playing[worker], speed * 1000 / 16)

    def _new_forks(self, stage: Rounds, forks: dict[int, float], numbers: Iterator[int]) -> Iterator[int]:
        wanted = forks_wanted(stage.waiting(), self.cores)
        while len(forks) < wanted:
            yield next(numbers)

    def _played(self, shard: Rounds, random: Random, number: int, left: float, cases: float) -> tuple[int, float]:
        """Return the round of a shard and how many cases are left of it after some more."""
        if left <= 0:
            ready = shard.next(random, lambda: False)
            if ready is None:
                self.idle += TICK
                return -1, 0.0
            number, left = ready.number, left + ready.cases
            self.cases[number] += CASES
        return number, left - cases


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "rounds", cores=16, workers=16, seconds_of_a_kernel=1.0)


def test_in_a_minute_many_keys_have_enough_cases_and_none_has_most(machine: Machine) -> None:
    machine.run(60.0)
    enough = [number for number, cases in machine.cases.items() if cases >= 20]
    assert len(enough) >= 150, "at least 60 are asked for"
    assert machine.cases.most_common(1)[0][1] < 0.1 * machine.cases.total()
    assert machine.idle < 0.1 * 60 * 16, "only until the first round is compiled"
    assert machine.most_forks == 15


def test_a_slow_compiler_leaves_workers_busy(machine: Machine) -> None:
    machine.seconds_of_a_kernel = 5.0
    machine.run(60.0)
    assert len(machine.cases) >= 30
    assert machine.idle < 0.25 * 60 * 16


def test_the_keys_of_five_minutes_have_every_pair_of_values() -> None:
    """With two kernels a round and a core's half for each compiler, 15 compile 3.4 rounds a second: 1,020 in 300 s."""
    pool, numbers = key_pool(DOMAIN), range(1000)
    seen = {pair for number in numbers for pair in value_pairs(shared_round(DOMAIN, 3, number).key)}
    assert seen == {pair for key in pool for pair in value_pairs(key)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", get_args(Family))
def test_the_keys_of_half_a_minute_are_served_too(family: Family) -> None:
    target = built_in(family)
    assert target is not None
    domain = target.domain.on_gpu()
    rounds = [shared_round(domain, 7, number) for number in range(60)]
    keys = [shared.key for shared in rounds if serves(shared.key)]
    assert len(keys) == 12
    assert len({(key.head_size, key.num_queries_per_kv) for key in keys}) == 12, "each of another model"
    cases: list[AttentionCase] = []
    for number, shared in enumerate(rounds):
        play_shared_round(domain, shared, number, 10, lambda case, relation: cases.append(case))
    assert sum(map(looks_like_serving, cases)) > 0.05 * len(cases)


@pytest.mark.parametrize("cores", [1, 2, 3, 16, 128])
def test_compilers_get_the_cores_that_shards_wait_for(cores: int) -> None:
    wanted = [forks_wanted(waiting, cores) for waiting in range(4 * cores)]
    assert wanted[0] == max(1, cores - 1)
    assert wanted == sorted(wanted, reverse=True)
    assert wanted[2 * cores - 1] == 1
    assert set(wanted[2 * cores :]) == {0}


def test_compilers_give_way_to_what_follows_failures() -> None:
    assert [niceness(waiting, 0, 16) for waiting in (0, 15, 16)] == [0, 0, REST_NICE]
    assert [niceness(waiting, 3, 13) for waiting in (0, 12, 13)] == [START_NICE, START_NICE, REST_NICE]
