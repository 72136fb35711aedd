"""What one run finds of five planted bugs: 120 seconds with two workers, for several seeds.

Run it with ``make bench``, or with seeds of your own: ``bench_distinct_failures.py 1 2 3``. Each run must end with a
table of five rows. The bugs of both targets show in about one case in 2, 4, 20, 60 and 300; the most frequent one of
the second target is an out-of-bounds read in a Triton kernel, which shows in nearly every case.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SEEDS: Final = ("1", "2", "3")
TARGETS: Final = Path(__file__).parents[1] / "sample_targets" / "five_bugs.py"
RUN: Final = (sys.executable, "-P", "-m", "fuzz_attn.cli.main", "run", "--max-time", "120", "--workers", "2")


def main() -> None:
    """Print the table of each run."""
    for name in ("five_bugs", "five_bugs_one_in_every_case"):
        for seed in sys.argv[1:] or SEEDS:
            print(f"{name}, seed {seed}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([*RUN, "--target", f"{TARGETS}:{name}", "--seed", seed, "--out", folder], check=False)


if __name__ == "__main__":
    main()
