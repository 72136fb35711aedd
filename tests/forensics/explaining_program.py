"""Explains seeded bugs on their saved cases in the simulator, and prints the explanations as JSON lines.

``python explaining_program.py CASES NAME...``: CASES is a JSON file of cases by bug. Without names all are explained.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import fuzz_attn
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.messages import Setup

TABLES = Path(fuzz_attn.__file__).parent / "mutation" / "seeded" / "tables"


def explained(bug: str, saved: dict[str, Any], backend: Any, scratch: Path) -> dict[str, Any]:
    """Return the explanation of a bug's saved case as plain data, with the processor time that it took."""
    from fuzz_attn.forensics.explain import explain  # noqa: PLC0415 - after the backend is prepared
    from fuzz_attn.mutation.seeded.bugs import seeded_bug  # noqa: PLC0415 - as above
    from fuzz_attn.mutation.seeded.edited_kernels import target_with  # noqa: PLC0415 - as above
    from fuzz_attn.properties.experiment import Experiment  # noqa: PLC0415 - as above

    target = target_with(seeded_bug(TABLES, bug), saved["family"], scratch)
    case = msgspec.convert(saved["case"], AttentionCase)
    began = time.process_time()
    explanation = explain(Experiment(case, target, backend), saved.get("relation"))
    return {
        "bug": bug,
        "family": saved["family"],
        "reason": explanation.reason,
        "words": explanation.words,
        "findings": [[finding.reason, finding.words] for finding in explanation.findings],
        "launches": explanation.launches,
        "seconds": time.process_time() - began,
    }


def main(cases: Path, names: list[str]) -> None:
    """Print the explanation of each named bug, or of all."""
    saved = json.loads(cases.read_text(encoding="utf-8"))
    judge = load(Setup("unified", backend="simulator"))
    judge.ready()
    with tempfile.TemporaryDirectory() as scratch:
        for bug in names or saved:
            print(json.dumps(explained(bug, saved[bug], judge.backend, Path(scratch))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
