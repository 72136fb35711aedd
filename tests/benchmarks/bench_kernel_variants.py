"""The number of cases for each kernel that Triton would compile, with rounds of each shard and with shared rounds.

It needs no GPU: launchers are called with Triton's compiler replaced. For shared rounds it also prints how many cases
need a kernel that the sample of the compile stage does not show; a worker drops those. Arguments: the number of shards
(16) and of rounds (3), then families (all).
"""

import os
import sys
from collections.abc import Set
from functools import partial
from statistics import fmean

os.environ.pop("TRITON_INTERPRET", None)

import torch

from fuzz_attn.backends.compiler import CompilerBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine.compiler import FIRST_KERNELS, LATER_KERNELS
from fuzz_attn.engine.rehearsal import Rehearsal, compile_most
from fuzz_attn.engine.rounds import CASES
from fuzz_attn.engine.schedule import ON_GPU, play_round, play_shared_round
from fuzz_attn.operations.attention.drawing import SharedRound, shared_round
from fuzz_attn.operations.operation import derived_seed
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.targets.built_in import BUILT_IN_NAMES
from fuzz_attn.targets.gpu_answers import gpu_answers
from fuzz_attn.targets.loading import load_target
from fuzz_attn.ttir.compiler_compat import KernelKey, WantedKernel

SEED = 1


class Counted(Rehearsal):
    """Counts the kernels of cases."""

    def __init__(self, family: str) -> None:
        target = load_target(family)
        domain = target.domain
        self.domain: Domain = domain.in_memory()
        super().__init__(target, CompilerBackend(gpu_answers), self.domain)
        self.clear()

    def clear(self) -> None:
        """Count from 0."""
        self.kernels: set[KernelKey] = set()
        self.cases = self.dropped = 0

    def attempt(self, case: AttentionCase, relation: str | None, *, sample: Set[KernelKey] | None = None) -> None:
        """Count a case. With a ``sample``, one that needs a kernel outside of it is dropped."""
        kernels = {kernel.key for kernel in self.rehearsed(case, relation).kernels}
        self.cases += 1
        if sample is None or kernels <= sample:
            self.kernels |= kernels
        else:
            self.dropped += 1

    def line(self, what: str) -> str:
        """Return the counts."""
        each = (self.cases - self.dropped) / max(1, len(self.kernels))
        return f"{what}: {self.cases} cases, {len(self.kernels)} kernels, {each:.1f} cases each, {self.dropped} dropped"


def own_rounds(counted: Counted, shards: int) -> None:
    """Print the count of one round of each shard."""
    counted.clear()
    for shard in range(shards):
        play_round(counted.domain, derived_seed(SEED, shard, 0), ON_GPU.cases, counted.attempt, ON_GPU)
    print(counted.line(f"  own rounds, one of {ON_GPU.cases} cases for each shard"), flush=True)


def shared_rounds(counted: Counted, shards: int, rounds: int, turn: int) -> None:
    """Print the count of rounds that shards share, in the first visit of their keys or in a later one."""
    chosen, dropped, needed = list[int](), list[float](), list[int]()
    keys = len(key_pool(counted.domain))
    for number in range(turn * keys, turn * keys + rounds):
        shared = shared_round(counted.domain, SEED, number)
        sample = chosen_kernels(counted, shared)
        for some, count in ((sample, chosen), (None, needed)):
            counted.clear()
            attempt = partial(counted.attempt, sample=some)
            for shard in range(shards):
                play_shared_round(counted.domain, shared, derived_seed(SEED, shard, number), CASES, attempt)
            count.append(len(sample) if some is not None else len(counted.kernels))
            if some is not None:
                dropped.append(counted.dropped / max(1, counted.cases))
    print(
        f"  {rounds} shared rounds, turn {turn}: {fmean(chosen):.2f} kernels compiled for each, at most {max(chosen)}, "
        f"of {fmean(needed):.2f} that {shards} times {CASES} cases need; {fmean(dropped):.1%} of the cases are dropped",
        flush=True,
    )


def chosen_kernels(counted: Counted, shared: SharedRound) -> set[KernelKey]:
    """Return the kernels that the compile stage compiles for a round, which are not compiled here."""
    chosen: set[KernelKey] = set()

    def noted(kernel: WantedKernel) -> WantedKernel:
        return WantedKernel(kernel.key, partial(chosen.add, kernel.key))

    sample = [each._replace(kernels=tuple(map(noted, each.kernels))) for each in counted.cases_of(shared)]
    compile_most(sample, LATER_KERNELS if shared.turn else FIRST_KERNELS)
    return chosen


def main() -> None:
    """Print the counts of each family."""
    torch.set_num_threads(1)
    shards, rounds = (int(text) for text in (sys.argv[1:3] + ["16", "3"][len(sys.argv[1:3]) :]))
    for family in sys.argv[3:] or BUILT_IN_NAMES:
        print(f"{family}, {shards} shards")
        counted = Counted(family)
        own_rounds(counted, shards)
        for turn in range(2):
            shared_rounds(counted, shards, rounds, turn)


if __name__ == "__main__":
    main()
