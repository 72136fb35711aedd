"""Cases a second on GPUs: a naive loop, and the campaign without and with CUDA's Multi-Process Service (MPS).

``bench_gpu.py --seconds 900`` takes 15 minutes on one GPU, and prints each row as soon as it is measured. ``--gpus 2``
compares one GPU with two, each with half of the workers. ``--json FILE`` also writes a
row of each family. The columns of a campaign:

- cases a second: of the whole campaign, and after its first ``--warm`` seconds, when most kernels are compiled;
- p50 and p95 of a case after these seconds, in milliseconds, as its shard sees it;
- kernels compiled and loaded by workers; the share of the time of cases that went to cases which compiled one, and the
  share of the workers' time in which they waited for the compile stage;
- the share of the time at which the GPU and the cores were busy;
- the seconds from the start of the process to the first case.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fuzz_attn.backends.gpus import visible_gpus
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.counterexamples import environment_of
from fuzz_attn.engine.run_plan import available_cores, system

SCRIPTS: Final = Path(__file__).parent / "gpu"
START_SECONDS: Final = 11.0
"""What a campaign takes beside its own time, about."""
PARTS_CASES: Final = 160
PARTS_SECONDS: Final = 30.0
TURNS_SHARE: Final = 0.25
"""The share of the campaigns' time that the one without MPS gets."""
WAYS: Final = ("turns", "mps")
A_HANG: Final = 300.0
WATCH_SECONDS: Final = 2.0


@dataclass
class Busy:
    """The shares of the time at which the GPUs and the cores were busy."""

    gpu: list[float] = field(default_factory=list)
    cores: float = 0.0

    @property
    def shares(self) -> str:
        """Both in words."""
        gpu = f"{statistics.fmean(self.gpu) / 100:4.0%}" if self.gpu else "   ?"
        return f"{gpu} {self.cores:5.0%}"


@contextmanager
def busy(gpus: list[str]) -> Iterator[Busy]:
    """Measure how busy GPUs and the cores are meanwhile."""
    found, over, before = Busy(), threading.Event(), _core_seconds()
    watch = threading.Thread(target=_watch, args=(gpus, found, over))
    watch.start()
    try:
        yield found
    finally:
        over.set()
        watch.join()
        used, total = (now - then for now, then in zip(_core_seconds(), before, strict=True))
        found.cores = used / max(total, 1e-9)


def _watch(gpus: list[str], found: Busy, over: threading.Event) -> None:
    """Ask every two seconds how busy the GPUs are."""
    command = ["nvidia-smi", "-i", ",".join(gpus), "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    while not over.wait(WATCH_SECONDS):
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return
        found.gpu += [float(line) for line in said.splitlines() if line.strip().isdigit()]


def _core_seconds() -> tuple[float, float]:
    """Return the time that the machine's cores were busy, and all of their time."""
    numbers = [int(number) for number in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def child(script: str, *arguments: object, gpus: list[str], seconds: float) -> dict[str, Any] | None:
    """Return what a script of the folder gpu prints, with no kernel compiled before; None where it fails."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    limit = seconds + A_HANG
    try:
        with tempfile.TemporaryDirectory() as cache:
            environment["TRITON_CACHE_DIR"] = cache
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        print(f"{script} {arguments}: took longer than {limit:.0f} s", flush=True)
        return None
    if done.returncode:
        print(f"{script} {arguments} failed:\n{done.stderr[-2000:]}", flush=True)
        return None
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@dataclass
class Bench:
    """What is measured, and the seconds of each campaign with MPS and without."""

    families: list[str]
    workers: int
    warm: float
    naive: float
    campaign: float
    turns: float
    gpus: list[str]
    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    mps: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each family, figures of the campaign with MPS beside its rate."""

    def family(self, name: str) -> None:
        """Print the rows of one family on one GPU."""
        self.print_naive(name)
        for way in WAYS:
            self.print_campaign(name, way, self.workers, self.gpus)
        self.print_parts(name)
        self.print_ratios(name)

    def print_naive(self, name: str) -> None:
        """Print the row of the naive loop."""
        found = child("naive_loop.py", name, self.naive, gpus=self.gpus, seconds=self.naive)
        if found is not None:
            self.rates[name, "naive"] = found["cases"] / found["seconds"]
            rate = self.rates[name, "naive"]
            print(f"{name:8} {'naive':10} {rate:8.1f}   {found['failed']} of {found['cases']} failed", flush=True)

    def print_campaign(self, name: str, way: str, workers: int, gpus: list[str], label: str = "") -> None:
        """Print the row of a campaign."""
        seconds = self.campaign if way == "mps" else self.turns
        arguments = name, seconds, min(self.warm, seconds / 2), workers, way
        with busy(gpus) as used:
            found = child("campaign.py", *arguments, gpus=gpus, seconds=seconds)
        if found is None:
            return
        label = label or way
        self.rates[name, label] = found["late"]
        gpu, cores = used.shares.split()
        self.mps[name] = {
            "one case, p50 and p95": f"{found['p50']:.1f} and {found['p95']:.1f} ms",
            "GPU busy": gpu,
            "cores busy": cores,
            "waited for kernels": f"{found['waited']:.1%}",
        }
        print(
            f"{name:8} {label:10} {found['rate']:8.1f} {found['late']:8.1f} {found['p50']:8.1f} {found['p95']:8.1f} "
            f"{found['compiled']:8} {found['loaded']:7} {found['compile share']:7.0%} {found['waited']:6.1%}  "
            f"{used.shares} {found['start']:7.1f}",
            flush=True,
        )
        for text in (*found["notes"], *found["errors"], *(f"failure: {text[:200]}" for text in found["failures"])):
            print(f"{'':19} {text}", flush=True)

    def row(self, name: str) -> dict[str, str]:
        """Return the row of a family for a file; the rates of what failed are "not measured"."""
        names = {"naive": "naive", "turns": "without MPS", "mps": "with MPS"}
        rates = {words: self.rates.get((name, way)) for way, words in names.items()}
        shown = {words: "not measured" if rate is None else f"{rate:,.1f}" for words, rate in rates.items()}
        return {"family": name} | shown | self.mps.get(name, {})

    def print_parts(self, name: str) -> None:
        """Print the parts of a warm case."""
        found = child("case_parts.py", name, PARTS_CASES, gpus=self.gpus[:1], seconds=PARTS_SECONDS)
        if found is not None:
            parts = ", ".join(f"{part} {half:.2f}/{tail:.2f}" for part, (half, tail) in found.items())
            print(f"{name:8} parts of a case, p50/p95 in ms: {parts}", flush=True)

    def print_ratios(self, name: str) -> None:
        """Print how many times as fast the campaign with MPS is."""
        mps = self.rates.get((name, "mps"), 0.0)
        ratios = [
            f"{mps / rate:.1f} times {way}" for way in ("naive", "turns") if (rate := self.rates.get((name, way)))
        ]
        print(f"{name:8} with MPS, after {self.warm:.0f} s: {', '.join(ratios)}\n", flush=True)

    def two(self, name: str) -> None:
        """Print the rows of one family on one GPU and on two, and their ratio."""
        self.print_campaign(name, "mps", self.workers // 2, self.gpus[:1], "one GPU")
        self.print_campaign(name, "mps", self.workers, self.gpus[:2], "two GPUs")
        one, two = (self.rates.get((name, label), 0.0) for label in ("one GPU", "two GPUs"))
        print(f"{name:8} two GPUs are {two / max(one, 1e-9):.2f} times one\n", flush=True)


def plan(options: argparse.Namespace, gpus: list[str]) -> Bench:
    """Return what to measure, so that all of it takes the given time."""
    families = options.families.split(",")
    left = options.seconds / len(families)
    if options.gpus == 1:
        left -= options.naive + 3 * START_SECONDS + PARTS_SECONDS
        campaign = max(20.0, left * (1 - TURNS_SHARE))
    else:
        campaign = max(20.0, left / 2 - START_SECONDS)
    turns = max(15.0, left - campaign)
    warm = min(options.warm, campaign / 2)
    return Bench(families, options.workers, warm, options.naive, campaign, turns, gpus[: options.gpus])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0, help="how long all of it may take, about")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--warm", type=float, default=60.0, help="half of a campaign at most")
    parser.add_argument("--naive", type=float, default=20.0, help="seconds of the naive loop")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--json", type=Path, help="also write the rows to this file; on one GPU")
    options = parser.parse_args()
    gpus = visible_gpus(os.environ)
    if len(gpus) < options.gpus:
        print(f"bench_gpu: needs {options.gpus} GPU, and {len(gpus)} are visible: nothing to measure")
        return
    bench = plan(options, gpus)
    print(f"{system()}; {', '.join(f'{name} {number}' for name, number in environment_of('', ()).versions.items())}")
    print(
        f"{', '.join(bench.families)}: campaigns of {bench.campaign:.0f} s, {bench.warm:.0f} s of them to warm up "
        + f"({bench.turns:.0f} s without MPS) " * (options.gpus == 1)
        + f"with {bench.workers} workers on {options.gpus} GPU; about {options.seconds:.0f} s in all"
    )
    print(
        f"{'family':8} {'way':10} {'cases/s':>8} {'warm':>8} {'p50 ms':>8} {'p95 ms':>8} {'compiled':>8} "
        f"{'loaded':>7} {'share':>7} {'waited':>6}  {'GPU':>4} {'cores':>5} {'start s':>7}",
        flush=True,
    )
    began = time.monotonic()
    for name in bench.families:
        (bench.family if options.gpus == 1 else bench.two)(name)
    print(f"took {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({"rows": [bench.row(name) for name in bench.families]}), encoding="utf-8")


if __name__ == "__main__":
    main()
