"""Benchmark: how often `explain` names the right reason for a seeded bug, in every family that the bug is in.

A small failing case of each bug is drawn and shrunk as a campaign does it, then explained. With ``--saved`` the shrunk
case of tests/forensics/seeded_bug_cases.json is taken first, changed to the family, where it fails there too; with
``--no-draws`` no other is looked for. The right reasons are those of tests/forensics/explained_bugs.toml. Prints a row
for each bug and family and the score; ``--out`` writes the rows with their cases to a JSON file.

``python bench_explanations.py [--out FILE] [--saved] [--no-draws] [--workers N] [--families F] [BUG ...]``
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

import fuzz_attn
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.engine.case_judge import CaseJudge, load
from fuzz_attn.engine.failures.reduction import simplify
from fuzz_attn.engine.failures.triage import OUTPUT, class_of
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.errors import FuzzAttnError, HangInterrupt
from fuzz_attn.mutation.batch_runner import CaseStream, limited_processor_time
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs, seeded_bug
from fuzz_attn.oracle.verdict import Verdict

TABLES: Final = Path(fuzz_attn.__file__).parent / "mutation" / "seeded" / "tables"
FORENSICS: Final = Path(__file__).parents[1] / "forensics"
TRUTH: Final = FORENSICS / "explained_bugs.toml"
RowOf: TypeAlias = Callable[[str, str], dict[str, Any]]
BATCH: Final = 20
CASES, MORE, SEED, SHRINK_SECONDS, CASE_SECONDS = 700, 25, 7, 30.0, 20.0


@cache
def judge() -> CaseJudge:
    """Return the simulator with a healthy target."""
    loaded = load(Setup("unified", backend="simulator"))
    loaded.ready()
    return loaded


@cache
def stream_of(family: str) -> CaseStream:
    """Return the cases of a campaign on the built-in target of a family."""
    from fuzz_attn.targets.loading import load_target  # noqa: PLC0415 - after the backend is prepared

    return CaseStream(load_target(family).domain, SEED)


def failures(order: Order, target: Any) -> list[Verdict]:
    """Return the failures of a case; none where it takes too long."""
    from fuzz_attn.properties.check import all_failures  # noqa: PLC0415 - after the backend is prepared
    from fuzz_attn.properties.experiment import Experiment  # noqa: PLC0415 - as above

    try:
        with limited_processor_time(CASE_SECONDS):
            experiment = Experiment(order.case, target, judge().backend)
            return [verdict for verdict in all_failures(experiment, order.relation) if not verdict.passed]
    except HangInterrupt:
        return []


def found(target: Any, family: str) -> tuple[Order, str] | None:
    """Return the first failing case and its class: a wrong output if one of the next cases has that."""
    best: tuple[Order, str] | None = None
    last = CASES
    for number in range(CASES):
        if number > last:
            break
        order = Order(*stream_of(family)[number])
        classes = [class_of(verdict) for verdict in failures(order, target)]
        if OUTPUT in classes:
            return order, OUTPUT
        if classes and best is None:
            best, last = (order, classes[0]), number + MORE
    return best


@cache
def saved_cases() -> dict[str, dict[str, Any]]:
    """Return the saved shrunk case of each bug, with its family."""
    saved: dict[str, dict[str, Any]] = json.loads((FORENSICS / "seeded_bug_cases.json").read_text(encoding="utf-8"))
    return saved


def moved(name: str, family: str, target: Any) -> Order | None:
    """Return the saved case of a bug as one of another family; None where it cannot be one, or passes there."""
    saved = saved_cases().get(name)
    if saved is None:
        return None
    for query_len in (0, 1, 3):  # as it is, as a decode, or as a chunk, which has more than one token
        fields = saved["case"] | {"family": family}
        if query_len:
            fields["sequences"] = [each | {"query_len": query_len} for each in fields["sequences"]]
        try:
            order = Order(msgspec.convert(fields, AttentionCase), saved.get("relation"))
            if failures(order, target):
                return order
        except (FuzzAttnError, msgspec.ValidationError):
            continue
    return None


def shrunk(order: Order, failure_class: str, target: Any) -> Order:
    """Return the simplest case of the class that is found in a limited time."""
    best, until = order, time.process_time() + SHRINK_SECONDS

    def fails(simpler: Order) -> bool:
        nonlocal best
        late = time.process_time() > until
        shows = not late and failure_class in map(class_of, failures(simpler, target))
        best = simpler if shows else best
        return shows

    simplify(order, fails, target.domain)
    return best


def failing(name: str, family: str, target: Any, *, draws: bool, saved: bool) -> Order | None:
    """Return a small failing case of a bug in a family, if one is found."""
    order = moved(name, family, target) if saved else None
    if order is not None or not draws:
        return order
    first = found(target, family)
    return None if first is None else shrunk(*first, target)


def explained(name: str, family: str, *, draws: bool, saved: bool) -> dict[str, Any]:
    """Return the reason and the words for one bug in one family, with the case."""
    from fuzz_attn.forensics.explain import explain  # noqa: PLC0415 - after the backend is prepared
    from fuzz_attn.mutation.edited_kernels import target_with  # noqa: PLC0415 - as above
    from fuzz_attn.properties.experiment import Experiment  # noqa: PLC0415 - as above

    backend = judge().backend
    row: dict[str, Any] = {"bug": name, "family": family, "reason": "", "words": "no failing case was found"}
    with tempfile.TemporaryDirectory() as scratch:
        target = target_with(seeded_bug(TABLES, name), family, Path(scratch))
        order = failing(name, family, target, draws=draws, saved=saved)
        if order is None:
            return row
        began = time.process_time()
        explanation = explain(Experiment(order.case, target, backend), order.relation)
        row |= {"reason": explanation.reason, "words": explanation.words, "seconds": time.process_time() - began}
        row |= {"launches": explanation.launches, "relation": order.relation}
        row["findings"] = [[finding.reason, finding.words] for finding in explanation.findings]
        row["case"] = json.loads(msgspec.json.encode(order.case))
    return row


def in_fork(name: str, family: str, *, draws: bool, saved: bool) -> dict[str, Any]:
    """Return the row of a bug; one that a kernel's crash or the harness itself ended says so."""
    try:
        return explained(name, family, draws=draws, saved=saved)
    except Exception as error:  # noqa: BLE001 - one bug must not end the benchmark
        return {"bug": name, "family": family, "reason": "", "words": f"{type(error).__name__}: {error}"}


def in_processes(row_of: RowOf, pairs: Sequence[tuple[str, str]], workers: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of bugs and families. New processes are started for each batch, since edited modules pile up."""
    size = BATCH * workers
    for first in range(0, len(pairs), size):
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            done = as_completed([pool.submit(row_of, *pair) for pair in pairs[first : first + size]])
            yield from (each.result() for each in done)


def main() -> None:
    """Explain the bugs and print the score."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--saved", action="store_true")
    parser.add_argument("--no-draws", action="store_true")
    parser.add_argument("--families", default="unified,paged,context,chunked")
    given = parser.parse_intermixed_args()
    truth = tomllib.loads(TRUTH.read_text(encoding="utf-8"))
    families = given.families.split(",")
    bugs = [bug for bug in load_seeded_bugs(TABLES) if not given.names or bug.name in given.names]
    pairs = [(bug.name, family) for bug in bugs for family in bug.families if family in families]
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    row_of = partial(in_fork, draws=not given.no_draws, saved=given.saved)
    for row in in_processes(row_of, pairs, given.workers):
        row["right"] = row["reason"] in truth[row["bug"]]["reasons"]
        rows.append(row)
        told = "right" if row["right"] else "WRONG"
        print(f"{told}  {row['bug']} [{row['family']}] {row['reason']}: {row['words']}", flush=True)
    rows.sort(key=lambda row: (row["bug"], row["family"]))
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    counted = [row for row in rows if row["reason"] and truth[row["bug"]].get("in_scope", True)]
    right = sum(row["right"] for row in counted)
    print(f"{right} of {len(counted)} in scope are right; {sum(not row['reason'] for row in rows)} have no case")
    seconds = sorted(row["seconds"] for row in rows if "seconds" in row)
    if seconds:
        print(f"processor time: median {seconds[len(seconds) // 2]:.2f} s, largest {seconds[-1]:.2f} s")


if __name__ == "__main__":
    main()
