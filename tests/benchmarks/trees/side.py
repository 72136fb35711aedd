"""One tree's part of compare.py: ``side.py TREE FAMILY SEED`` prints the CPU seconds of each round that it is told.

It says ``ready`` first, and reads the number of a round from each line of its input.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main(tree: Path, family: str, seed: int) -> None:
    """Play the rounds of a campaign of a tree, by that tree's own benchmark."""
    sys.path[:1] = [str(tree), str(tree / "tests" / "benchmarks")]
    os.chdir(tree)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUZZ_ATTN_CACHE"] = f"{folder}/cache"  # no program of an earlier seed is loaded
        _run(tree, Path(folder), family, seed)


def _run(tree: Path, place: Path, family: str, seed: int) -> None:
    bench: Any = importlib.import_module("bench_campaign")  # of the tree, which may be an older one
    package = str(importlib.import_module("fuzz_attn").__file__)
    if not Path(package).is_relative_to(tree):
        raise SystemExit(f"{tree}: fuzz_attn was imported from {package}")
    bench.MeasuredCampaign._search = _play_as_told
    plan = bench.Plan(bench.Setup(family), 0, 1, seed, None, sys.maxsize, place, place)
    # A tree from before campaigns had listeners takes none.
    listeners = [bench.Results()] if hasattr(bench, "Results") else []
    bench.MeasuredCampaign(plan, *listeners).run()
    assert not listeners or listeners[0].failure is None


def _play_as_told(campaign: Any) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        print(sum(campaign._measured(int(line))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
