"""Cases a second in this tree and in another one: ``compare.py OTHER [--cold] [--families F ...] [--seeds N ...]``.

OTHER is the folder of a checkout. Each tree draws cases of a default campaign and judges them, as ``bench_campaign.py``
does; the trees take turns with each round, so that whatever else the machine does costs both the same. The first play
of a round makes its kernels and does not count; of the others, the fastest counts. With ``--cold`` the first play alone
counts, as in the first minutes of a campaign. CPU seconds of a worker need Linux.

A round has few compile keys, so one seed says little: seeds differ by 20 % in either direction.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

from fuzz_attn.case.families import FAMILIES

HERE: Final = Path(__file__).parents[3]
SIDE: Final = Path(__file__).with_name("side.py")
SEEDS: Final = (11, 12, 13)
ROUNDS: Final = 2
REPEATS: Final = 3

Seconds: TypeAlias = tuple[float, float]
"""CPU seconds in this tree and in the other one."""


class Side:
    """A campaign of one tree, in its own process, which plays a round whenever it is asked to."""

    def __init__(self, tree: Path, family: str, seed: int) -> None:
        self._tree = tree
        command = [sys.executable, str(SIDE), str(tree), family, str(seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def __enter__(self) -> Side:
        """Return the side."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the campaign."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def play(self, number: int) -> float:
        """Return the CPU seconds of a round."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"{self._tree}: its campaign ended early; see above")
        return answer


def seconds_of(other: Path, family: str, seed: int, rounds: int, *, cold: bool = False) -> Seconds:
    """Return the CPU seconds of the same number of cases in both trees, cold ones with the making of their kernels."""
    total = [0.0, 0.0]
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(tree, family, seed)) for tree in (HERE, other)]
        for number in range(rounds):
            first = [side.play(number) for side in sides]
            plays = [first] if cold else [[side.play(number) for side in sides] for _ in range(REPEATS)]
            for index, times in enumerate(zip(*plays, strict=True)):
                total[index] += min(times)
    return total[0], total[1]


def families_of_both(other: Path) -> list[str]:
    """Return the families of this tree that the other tree, which may be older, has too."""
    theirs = (other / "fuzz_attn" / "case" / "families.py").read_text(encoding="utf-8")
    found: list[str] = [family for family in FAMILIES if f'"{family}": Interface(' in theirs]
    if not found:
        raise SystemExit(f"{other}: no family of this tree is there; name them with --families")
    return found


def _print(name: str, seed: str, seconds: Seconds) -> None:
    here, there = seconds
    print(f"{name:8} {seed:>5} {here:8.2f} {there:8.2f} {100 * (there / here - 1):+11.1f} %", flush=True)


def main() -> None:
    """Print the CPU seconds of each family and seed in both trees, and how many more cases a second this one judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder of another checkout")
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), help="all that both trees have by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of 240 cases for each seed")
    parser.add_argument("--cold", action="store_true", help="count the first play of a round, which makes its kernels")
    parser.add_argument("--core", type=int, help="the one core that all processes use; any by default")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    print(f"CPU seconds of {arguments.rounds} rounds, and how many more cases a second this tree judges")
    print(f"{'family':8} {'seed':>5} {'here':>8} {'other':>8} {'cases/s':>13}")
    everything = (0.0, 0.0)
    for family in arguments.families or families_of_both(arguments.other):
        found = [
            seconds_of(arguments.other.resolve(), family, seed, arguments.rounds, cold=arguments.cold)
            for seed in arguments.seeds
        ]
        for seed, seconds in zip(arguments.seeds, found, strict=True):
            _print(family, str(seed), seconds)
        together = sum(here for here, _ in found), sum(there for _, there in found)
        _print(family, "all", together)
        everything = everything[0] + together[0], everything[1] + together[1]
    _print("all", "all", everything)


if __name__ == "__main__":
    main()
