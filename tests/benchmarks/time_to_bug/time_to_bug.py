"""Time to bug: seconds from the start of `fuzz-attn run` to the first saved failure of a seeded bug. See `make help`.

Each of a random sample of seeded bugs is planted in a copy of the package, whose built-in target has the bug then, and
in a user's file. Folders are fresh and caches empty. Results go to one JSON file after each run; a second start with
the same file goes on where the first ended, so that a limit of ``--seconds`` cuts the work into slices.

``--published`` runs the launchers of a published version instead and says when each defect of the ledger was found.
``--breadth`` runs our own kernels, without a bug, and says how many compile keys and pairs of values were tried, and
then the same cases again, with the caches of the first run.

``--jobs 15 --cores 1`` plays 15 runs side by side, each on a core of its own. Seconds are those of the clock; CPU
seconds, of all processes of a run, say what they would be where a busy machine let it wait. Tables are Markdown.
``--json FILE`` also writes the rows of the last table, and what was not found.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from one_run import Command, first_failure, whole_run  # type: ignore[import-not-found] # beside this script
from planting import TABLES, WAYS, plant, sample  # type: ignore[import-not-found] # beside this script

from fuzz_attn.case.families import FAMILIES
from fuzz_attn.engine.failures.triage import class_of, failures_of
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.ledger.defects import load_table
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs

WITHIN: Final = (10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds; the shares of the runs that found their bug within them are printed."""
FAR: Final = "_in_32_bits"
"""The end of the names of bugs that only addresses past 2 GiB show, which only the simulator reaches."""
ONLY_READS: Final = "value_read_beyond_head"
"""A bug that no output shows: columns of V that no row stores are read, so that only a sanitizer sees it."""
UNITS: Final = ((0, "clock"), (1, "CPU"))
"""The position of each unit of time in the result of a published defect."""
END_SECONDS: Final = 5.0
"""What a run takes beside its limit, about."""
Result: TypeAlias = dict[str, Any]


class Results:
    """The file of results: one object for each run, found by its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.all: dict[str, Result] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, result: Result) -> None:
        """Keep the result of a run, and write the file."""
        self.all[name] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.all, indent=1))


def seeded_runs(options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    """Yield the name of each run of a seeded bug and what it is, the seeds one after the other."""
    unseen = () if options.backend == "simulator" else (FAR, ONLY_READS)
    bugs = [bug for bug in load_seeded_bugs(TABLES) if not bug.name.endswith(unseen)]
    if unseen:
        print("Left out, as only the simulator shows them: *", ", *".join(unseen), sep="")
    chosen = sample(bugs, options.sample, options.sample_seed)
    for seed in options.seeds:
        for number, (bug, family) in enumerate(chosen):
            ways = WAYS if options.ways == "both" else (WAYS[(number + seed) % len(WAYS)],)
            for way in ways if options.ways in ("both", "alternate") else (options.ways,):
                yield f"{bug.name} {family} {way} {seed}", {"bug": bug, "family": family, "way": way, "seed": seed}


def run_seeded(run: Result, options: argparse.Namespace, folder: Path) -> Result:
    """Return the result of one run."""
    planted = plant(run["bug"], run["family"], run["way"], folder / "target")
    command = command_of(planted.target, run["seed"], options, planted.python_path)
    found: Result = first_failure(command, folder)
    return {"family": run["family"], "way": run["way"]} | found


def command_of(target: str, seed: int, options: argparse.Namespace, python_path: str = "") -> Command:
    """Return the command of a run as the options say."""
    settings = (options.backend, seed, options.limit, options.workers, python_path)
    packages, wheel = options.packages, options.wheel
    return Command(target, *settings, packages=packages, wheel=wheel, cache=options.cache)


def breadth_runs(options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    """Yield a run of each family's healthy kernel for each seed."""
    for seed in options.seeds:
        for family in FAMILIES:
            yield f"healthy {family} {seed}", {"target": family, "seed": seed, "family": family}


def published_runs(options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    """Yield a run of each launcher of the ledger that has the published version, for each seed."""
    for seed in options.seeds:
        for name, launcher in load_table().launchers.items():
            if options.published in launcher.modules:
                yield f"{name} {seed}", {"target": launcher.spec(options.published), "seed": seed, "launcher": name}


def run_whole(run: Result, options: argparse.Namespace, folder: Path) -> Result:
    """Return the figures of a run of the whole time; of a published launcher with the seconds to each known defect."""
    command = command_of(run["target"], run["seed"], options)
    result: Result = whole_run(command, folder)
    if options.breadth and options.cache is None:
        warm = whole_run(command._replace(cache=folder / "cache", cases=result["cases"]), folder / "warm")
        result |= {"warm cpu": warm["cpu"], "warm rate": warm["rate"]}
    if "launcher" in run and options.backend == "cuda":
        add_classes_in_simulator(result["failures"], run["target"], folder / "cache")
    defects = {"defects": defects_in(result, run["launcher"], options.published)} if "launcher" in run else {}
    names = ("after", "cpu", "classes", "trigger", "message")
    shown = [{name: each[name] for name in names} for each in result["failures"]]
    return {"seed": run["seed"], "family": run.get("family", "")} | result | defects | {"failures": shown}


def add_classes_in_simulator(failures: Sequence[Result], target: str, cache: Path) -> None:
    """Add the classes that each failure of a GPU has in the simulator, which sees the line; none where it passes."""
    os.environ["FUZZ_ATTN_CACHE"] = str(cache)
    with IsolatedWorker(Setup(target, backend="simulator")) as worker:
        for each in failures:
            file = each["file"]
            answer = worker.judge(Order(file.case, file.relation))
            each["classes"] += [class_of(verdict) for verdict in failures_of(answer)]


def defects_in(result: Result, launcher: str, version: str) -> dict[str, tuple[float, float] | None]:
    """Return seconds and CPU seconds to the first failure of each known defect of a version, None for one not found.

    A failure is the defect of its class, whose trigger is most like its own: a wrong output has no line.
    """
    table = load_table()
    rows = [row for row in table.rows.values() if row.launcher == launcher and row.versions[version] == "FAILED"]
    seconds: dict[str, tuple[float, float] | None] = {row.name: None for row in rows if row.confirmed}
    for each in sorted(result["failures"], key=lambda failure: float(failure["after"])):
        names = {_without_folder(name) for name in each["classes"]}
        alike = [row for row in rows if _without_folder(class_of(table.case(row).verdict)) in names]
        if alike:
            row = max(alike, key=lambda row: len(set(table.case(row).trigger or ()).intersection(each["trigger"])))
            if seconds.get(row.name, ()) is None:
                seconds[row.name] = each["after"], math.nan if each["cpu"] is None else each["cpu"]
    return seconds


def _without_folder(failure_class: str) -> str:
    """Return a class of failures whose line is in a file without its folder, which differs from cache to cache."""
    kind, _, place = failure_class.rpartition(" ")
    return f"{kind} {Path(place).name}"


def summary(results: Sequence[Result], unit: str) -> Result:
    """Return the median, 90 % and worst seconds, where not found counts as infinite, the shares, and the breadth."""
    seconds = sorted(math.inf if each[unit] is None else each[unit] for each in results)
    shares = {f"in {limit:g} s": f"{sum(each <= limit for each in seconds) / len(seconds):.1%}" for limit in WITHIN}
    means = {name: f"{statistics.fmean(each[name] for each in results):.3g}" for name in ("keys", "pairs", "rate")}
    times = {"median": statistics.median_high(seconds), "90 %": _part(seconds, 0.9), "worst": seconds[-1]}
    found = {"runs": len(seconds), "found": sum(each < math.inf for each in seconds)}
    return found | {name: f"{value:.1f}" for name, value in times.items()} | shares | means


def _part(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part of the values does not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def table(rows: Sequence[Result]) -> str:
    """Return rows with the same columns as a table of Markdown."""
    lines = [[*rows[0]], ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def print_seeded(results: Sequence[Result]) -> list[Result]:
    """Print and return the figures of all runs and of each way, by the clock and in CPU seconds."""
    ways = [("all", list(results)), *((way, [each for each in results if each["way"] == way]) for way in WAYS)]
    rows = [
        {"planted": name, "seconds": word} | summary(some, unit)
        for name, some in ways
        for unit, word in (("seconds", "clock"), ("cpu", "CPU"))
        if some
    ]
    print(table(rows))
    return rows


def print_published(results: Sequence[Result]) -> list[Result]:
    """Print when each seed showed each defect: seconds of the clock, and CPU seconds behind a slash; return both."""
    seeds = sorted({each["seed"] for each in results})
    found = {(name, each["seed"]): at for each in results for name, at in each["defects"].items()}
    words = {key: "not found" if at is None else " / ".join(f"{each:.1f}" for each in at) for key, at in found.items()}
    names = dict.fromkeys(name for name, _ in found)
    print(table([{"defect": name} | {f"seed {seed}": words.get((name, seed), "") for seed in seeds} for name in names]))
    counts = {f"seed {seed}": sum(at is not None for (_, own), at in found.items() if own == seed) for seed in seeds}
    print(f"found of {len(names)}: {counts}")
    return [
        {"defect": f"`{name}`"}
        | {f"seed {seed}, {unit}": _one(found.get((name, seed)), index) for seed in seeds for index, unit in UNITS}
        for name in names
    ]


def _one(times: tuple[float, float] | None, index: int) -> str:
    return "not found" if times is None else f"{times[index]:.1f}"


def print_breadth(results: Sequence[Result]) -> list[Result]:
    """Print and return how much each run of a healthy kernel tried, and its cases a second, cold and warm."""
    names = ("family", "seed", "keys", "keys with 20 cases", "pairs", "pairs of features", "cases")
    rows = []
    for each in results:
        rates = {"cases/s": each["rate"], "cases/CPU s": round(each["cases"] / each["cpu"], 1)}
        if "warm rate" in each:
            rates |= {"warm cases/s": each["warm rate"], "warm cases/CPU s": round(each["cases"] / each["warm cpu"], 1)}
        rows.append({name: each[name] for name in names} | rates)
    print(table(rows))
    return rows


def play(options: argparse.Namespace) -> Results:
    """Play the runs that the file of results lacks, as long as there is time for one more."""
    results, began = Results(options.results), time.monotonic()
    runs = published_runs if options.published else breadth_runs if options.breadth else seeded_runs
    one = run_seeded if runs is seeded_runs else run_whole
    places = places_of(options)

    def timely(run: Result) -> Result | None:
        if options.seconds is not None and time.monotonic() - began + options.limit + END_SECONDS > options.seconds:
            return None
        return on_place(places, lambda folder: one(run, options, folder))

    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(timely, run): name for name, run in runs(options) if name not in results.all}
        for done in as_completed(waiting):
            if done.exception() is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            if (result := done.result()) is not None:
                results.add(waiting[done], result)
                print(f"{waiting[done]}: {line_of(result)}", flush=True)
    if left := sum(done.result() is None for done in waiting):
        print(f"the {options.seconds:g} s are over, {left} runs are left; go on with the same --results", flush=True)
    return results


def places_of(options: argparse.Namespace) -> SimpleQueue[set[int]]:
    """Return the cores of each run that is played at a time: all of them, where the options do not say how many."""
    own = sorted(os.sched_getaffinity(0))
    count = options.cores or len(own)
    if (options.cores or 1) * options.jobs > len(own):
        raise SystemExit(f"--jobs {options.jobs} with --cores {options.cores or 1} need more than {len(own)} cores")
    places: SimpleQueue[set[int]] = SimpleQueue()
    for number in range(options.jobs):
        places.put(set(own[number * count : (number + 1) * count] if options.cores else own))
    return places


def on_place(places: SimpleQueue[set[int]], run: Callable[[Path], Result]) -> Result:
    """Return the result of a run in a new folder. Its processes inherit the cores of this thread."""
    place, before = places.get(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, place)
    try:
        with tempfile.TemporaryDirectory(prefix="time-to-bug-") as scratch:
            return run(Path(scratch))
    finally:
        os.sched_setaffinity(0, before)
        places.put(place)


def line_of(result: Result) -> str:
    """Return a result in one line."""
    counts = ", ".join(
        f"{name} {result[name]}"
        for name in ("keys", "keys with 20 cases", "pairs", "pairs of features", "cases", "rate")
    )
    if "defects" in result:
        return f"{result['defects']}, {counts}"
    if "way" in result:
        return f"{result['seconds']} s, {result['cpu']} CPU s, {counts}"
    return f"{counts}, warm {result['warm rate']}" if "warm rate" in result else counts


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="simulator", choices=("simulator", "interpreter", "cuda"))
    parser.add_argument("--sample", type=int, default=40, help="how many bugs")
    parser.add_argument("--sample-seed", type=int, default=1, help="which bugs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds of the runs")
    parser.add_argument("--ways", default="both", choices=("both", "alternate", *WAYS))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a run")
    parser.add_argument("--seconds", type=float, help="seconds of all runs; none begins that may exceed them")
    parser.add_argument("--workers", type=int, help="workers of a run; default: one for each core")
    parser.add_argument("--results", type=Path, default=Path("reports/time-to-bug.json"))
    parser.add_argument("--published", metavar="VERSION", default="", help="vLLM's launchers instead, such as 0.33.0")
    parser.add_argument("--packages", type=Path, help="a folder `published` of a cache, for a machine without network")
    parser.add_argument("--wheel", type=Path, help="its wheel, for the same; small_wheel.py makes it small")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--cores", type=int, help="cores of each run, which no other has; default: all, shared")
    parser.add_argument("--breadth", action="store_true", help="our own kernels without a bug instead")
    parser.add_argument("--json", type=Path, help="also write the rows of the last table to this file")
    parser.add_argument("--cache", type=Path, help="a cache folder that all runs share: warm starts")
    return parser.parse_args(arguments)


def main() -> None:
    """Play the runs and print the figures of all in the file."""
    options = parsed(sys.argv[1:])
    named = play(options).all
    results, rows = list(named.values()), list[Result]()
    if seeded := [result for result in results if "way" in result]:
        rows = print_seeded(seeded)
    if published := [result for result in results if "defects" in result]:
        rows = print_published(published)
    if breadth := [result for result in results if "way" not in result and "defects" not in result]:
        rows = print_breadth(breadth)
    if options.json:
        missed = [name for name, result in named.items() if "way" in result and result["seconds"] is None]
        missed += [f"{name} (seed {run['seed']})" for run in published for name, at in run["defects"].items() if not at]
        found = {"rows": [{"backend": options.backend} | row for row in rows], "not_found": ", ".join(missed)}
        options.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
