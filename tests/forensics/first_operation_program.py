"""Compares seeded bugs with this project's own kernels in the simulator, and prints what is named as JSON lines.

``python first_operation_program.py CASES NAME...``: CASES is a JSON file of cases by bug. ``itself`` in place of a bug
is our own kernel, ``another`` a kernel that only copies, and ``unlaunched`` a target in plain torch. With ``refused``
the healthy target refuses the case.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import fuzz_attn
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Setup
from fuzz_attn.forensics.explanation import FirstOperation

TABLES = Path(fuzz_attn.__file__).parent / "mutation" / "seeded" / "tables"
BUG = "causal_or_equal"
SAMPLES = Path(__file__).parents[1] / "sample_targets"
COPYING, IN_TORCH = (f"{SAMPLES / name}:unified_attention" for name in ("copying.py", "torch_attention.py"))


def refuse(**_: object) -> None:
    """Refuse every case."""
    raise ValueError("this kernel supports no such case")


def named(name: str, cases: dict[str, Any], backend: Any, scratch: Path) -> FirstOperation:
    """Return the first operation of a seeded bug that differs from our kernel."""
    from fuzz_attn.forensics.first_operation import first_operation  # noqa: PLC0415 - after the backend is prepared
    from fuzz_attn.mutation.edited_kernels import target_with  # noqa: PLC0415 - as above
    from fuzz_attn.mutation.seeded_bugs import seeded_bug  # noqa: PLC0415 - as above
    from fuzz_attn.properties.experiment import Experiment  # noqa: PLC0415 - as above
    from fuzz_attn.targets.loading import load_target  # noqa: PLC0415 - as above

    bug = name if name in cases else BUG
    saved = cases[bug]
    healthy = load_target(saved["family"])
    family = saved["family"]
    if name in cases:
        target = target_with(seeded_bug(TABLES, bug), family, scratch)
    else:
        target = load_target({"another": COPYING, "unlaunched": IN_TORCH}.get(name, family), family)
    other = replace(healthy, call=refuse) if name == "refused" else healthy
    case = msgspec.convert(saved["case"], AttentionCase)
    return first_operation(Experiment(case, target, backend), saved.get("relation"), other)


def main() -> None:
    """Print a line for each name."""
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    judge = load(Setup("unified", backend="simulator"))
    judge.ready()
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[2:]:
            found = named(name, cases, judge.backend, Path(scratch))
            print(json.dumps({"bug": name, **msgspec.to_builtins(found)}), flush=True)


if __name__ == "__main__":
    main()
