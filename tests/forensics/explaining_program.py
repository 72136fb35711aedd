"""Explains seeded bugs on their saved cases in the simulator, and prints the explanations as JSON lines.

``python explaining_program.py CASES [--check TRUTH] [--tables FOLDER] NAME...``: CASES is a JSON file of cases by bug,
and FOLDER holds other bugs than the seeded ones. With ``--repair`` a change of the kernel that mends it is looked for
too, which takes ten seconds of processor time. Without names all are explained. Tests give each search more
``--seconds``, so that its answer does not depend on how fast a machine is; numbers of launches end it too. With
``--check`` only the explanations are printed that TRUTH, a table of reasons and words, does not state; exit status 1 if
there are any.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import fuzz_attn
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Setup

TABLES = Path(fuzz_attn.__file__).parent / "mutation" / "seeded" / "tables"


def explained(
    bug: str, saved: dict[str, Any], backend: Any, scratch: Path, tables: Path, *, repair: bool
) -> dict[str, Any]:
    """Return the explanation of a bug's saved case as plain data, with the processor time that it took."""
    from fuzz_attn.mutation.edited_kernels import target_with  # noqa: PLC0415 - after the backend is prepared
    from fuzz_attn.mutation.seeded_bugs import seeded_bug  # noqa: PLC0415 - as above
    from fuzz_attn.operations.registry import operation_of_family  # noqa: PLC0415 - as above

    operation = operation_of_family(saved["family"])
    target = target_with(seeded_bug(tables, bug), saved["family"], scratch)
    case = msgspec.convert(saved["case"], operation.case_type)
    began = time.process_time()
    experiment = operation.experiment(case, target, backend)
    explanation = operation.explain(experiment, saved.get("relation"))
    if repair:
        explanation = operation.with_repair(explanation, experiment, saved.get("relation"))
    return {
        "bug": bug,
        "family": saved["family"],
        "reason": explanation.reason,
        "words": explanation.words,
        "cause": explanation.cause,
        "findings": [[finding.reason, finding.words] for finding in explanation.findings],
        "repair": "" if explanation.repair is None else explanation.repair.sentence,
        "launches": explanation.launches,
        "seconds": time.process_time() - began,
    }


def explanations(
    cases: Path, names: list[str], tables: Path, *, repair: bool, seconds: float | None
) -> Iterator[dict[str, Any]]:
    """Yield the explanation of each named bug, or of all."""
    saved = json.loads(cases.read_text(encoding="utf-8"))
    judge = load(Setup("unified", backend="simulator"))
    judge.ready()
    if seconds:
        from fuzz_attn.forensics import explain  # noqa: PLC0415 - after the backend is prepared
        from fuzz_attn.forensics import repair as search  # noqa: PLC0415 - as above

        explain.SECONDS = search.SECONDS = seconds  # type: ignore[misc, attr-defined] # no constants here
    with tempfile.TemporaryDirectory() as scratch:
        for bug in names or saved:
            yield explained(bug, saved[bug], judge.backend, Path(scratch), tables, repair=repair)


def check(rows: Iterator[dict[str, Any]], truth: dict[str, dict[str, Any]]) -> int:
    """Print the explanations that are not as stated; return 1 if there are any."""
    wrong, number, seconds = 0, 0, 0.0
    for row in rows:
        stated = truth[row["bug"]]
        number, seconds = number + 1, seconds + row["seconds"]
        if row["reason"] not in stated["reasons"] or not re.search(stated.get("words", ""), row["words"]):
            wrong += 1
            print(f"{row['bug']}: {row['reason']}: {row['words']}", flush=True)
    print(f"{number - wrong} of {number} explanations are as stated; {seconds:.0f} s of processor time")
    return min(wrong, 1)


def main() -> int:
    """Print the explanations, or check them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", type=Path)
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("--repair", action="store_true")
    parser.add_argument("--seconds", type=float)
    given = parser.parse_intermixed_args()
    rows = explanations(given.cases, given.names, given.tables, repair=given.repair, seconds=given.seconds)
    if given.check is not None:
        return check(rows, tomllib.loads(given.check.read_text(encoding="utf-8")))
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
