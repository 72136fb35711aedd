"""Rows of evidence that come from the commands of users: ``counts.py WHAT --json FILE``.

``alarms`` and ``ratios`` run ``fuzz-attn run`` on our own kernels, ``seeded``, ``tolerances`` and ``ir`` run
``fuzz-attn audit``, for each family in turn; ``tolerances`` for unified only. See evidence.py, which starts them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fuzz_attn.case.families import FAMILIES
from fuzz_attn.mutation.audit_results import (
    FLASH_ATTENTION,
    PROPERTIES,
    VLLM,
    Audit,
    by_mutant,
    load,
    own_score,
    rule_score,
    times_found,
)

COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.cli.main")
TYPES: Final = ("bfloat16", "float16", "float32", "fp8 output")
JUDGES: Final = {PROPERTIES: "our bound", VLLM: "vLLM's tolerance", FLASH_ATTENTION: "FlashAttention's rule"}
NAMES: Final = {"simulator": "simulator", "interpreter": "interpreter", "cuda": "GPU"}
DEVICES: Final = {"simulator": "CPU", "interpreter": "CPU", "cuda": "GPU"}

Row = dict[str, str]


def statistics_of_run(family: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the statistics of a run of our own kernel, and how many failures its table has."""
    options = ["--backend", given.backend, "--target", family, "--max-time", str(given.seconds), "--json"]
    with tempfile.TemporaryDirectory() as folder:
        place = ["--workers", str(given.workers), "--seed", str(given.seed), "--out", folder]
        done = subprocess.run([*COMMAND, "run", *options, *place], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"counts: the run of {family} ended with {done.returncode}")
    (target,) = json.loads(done.stdout)["targets"]
    return {**target["statistics"], "failures": len(target["failures"])}


def alarms(given: argparse.Namespace) -> list[Row]:
    """Return how many cases of each family failed: our kernels are correct, so each failure is a false alarm."""
    rows = []
    for family in given.families:
        found = statistics_of_run(family, given)
        most = f"{3 / found['cases']:.5f}" if found["cases"] and not found["failing"] else "does not hold"
        row = {"backend": NAMES[given.backend], "kernels": family, "cases": f"{found['cases']:,}"}
        rows.append(row | {"false alarms": str(found["failing"]), "at most per case (3/n)": most})
    return rows


def ratios(given: argparse.Namespace) -> list[Row]:
    """Return the largest error of each family and type against its bound."""
    rows = []
    for family in given.families:
        found = statistics_of_run(family, given)["ratios"]
        figures = {name: f"{found[name]:.3f}" if name in found else "not drawn" for name in TYPES}
        rows.append({"device": DEVICES[given.backend], "family": family} | figures)
    return rows


def audit_of(family: str, given: argparse.Namespace, *options: str) -> Audit:
    """Return an audit of our own kernels."""
    counts = ["--max-cases", str(given.max_cases), "--seed", str(given.seed), "--seeds", str(given.seeds)]
    with tempfile.TemporaryDirectory() as folder:
        place = ["--workers", str(given.workers), "--examine", "0", "--out", folder]
        subprocess.run([*COMMAND, "audit", "--target", family, *options, *counts, *place], check=True)
        (file,) = Path(folder).rglob("audit.json")
        return load(file)


def seeded(given: argparse.Namespace) -> list[Row]:
    """Return how many seeded bugs every seed found, and after how many cases."""
    rows = []
    for family in given.families:
        mutants = by_mutant(audit_of(family, given, "--seeded", "--no-rules").outcomes)
        cases = [outcome.case for each in mutants for outcome in each if outcome.state == "killed"]
        found = sum(times_found(each) == len(each) for each in mutants)
        row = {"family": family, "bugs": f"{len(mutants):,}", "found by every seed": str(found)}
        median = f"{statistics.median(cases):g}" if cases else "none found"
        rows.append(row | {"cases, median": median, "cases, most": str(max(cases, default="none found"))})
    return rows


def tolerances(given: argparse.Namespace) -> list[Row]:
    """Return how many seeded bugs of unified our bound and two fixed tolerances find, and their false alarms."""
    audit = audit_of("unified", given, "--seeded", "--rules")
    found = {name: rule_score(audit.outcomes, name) for name in (VLLM, FLASH_ATTENTION)}
    found[PROPERTIES] = own_score(audit.outcomes)
    false = {name: sum(alarm.rule == name for alarm in audit.false_alarms) for name in JUDGES}
    return [
        {
            "judge": words,
            "found of all bugs of unified": f"{found[name].found:g} of {found[name].of}",
            "false alarms on correct kernels": str(false[name]),
        }
        for name, words in JUDGES.items()
    ]


def ir(given: argparse.Namespace) -> list[Row]:
    """Return which share of the changes of each family's IR is found, and by how many seeds."""
    rows = []
    for family in given.families:
        audit = audit_of(family, given, "--ir", "--no-rules")
        mutants, score = by_mutant(audit.outcomes), own_score(audit.outcomes)
        by_seed = [
            own_score(outcome for each in mutants for outcome in each if outcome.seed == seed).percent or math.nan
            for seed in audit.seeds
        ]
        row = {"family": family, "changes": f"{score.of:,}", "found, mean": f"{score.found:,.1f}"}
        row |= {"share": f"{score.percent or math.nan:.1f} %"}
        row |= {"lowest to highest seed": f"{min(by_seed):.1f} to {max(by_seed):.1f} %"}
        rows.append(row | {"by no seed": str(sum(not times_found(each) for each in mutants))})
    return rows


MEASURES: Final = {"alarms": alarms, "ratios": ratios, "seeded": seeded, "tolerances": tolerances, "ir": ir}


def main(arguments: Sequence[str]) -> None:
    """Write the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(MEASURES))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--backend", choices=tuple(NAMES), default="simulator")
    parser.add_argument("--seconds", type=float, default=150.0, help="of each run")
    parser.add_argument("--max-cases", type=int, default=400, help="of each mutant")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args(arguments)
    given.json.write_text(json.dumps({"rows": MEASURES[given.what](given)}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
