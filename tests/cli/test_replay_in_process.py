"""``fuzz-attn replay --in-process``: prints and the debugger of the target work, and the verdict is the same."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.oracle.verdict import Verdict

TARGETS = Path(__file__).parents[1] / "sample_targets"
SCRIPT = str(Path(sys.executable).with_name("fuzz-attn"))
DEBUGGED = f"""
import sys
sys.path.append({str(TARGETS)!r})
from torch_attention import last_row_unwritten
from functools import wraps

@wraps(last_row_unwritten)
def debugged(**given):
    print("shape of q:", tuple(given["q"].shape), flush=True)
    breakpoint()
    last_row_unwritten(**given)
"""


@pytest.mark.slow
def test_prints_and_breakpoints_work(tmp_path: Path, case: AttentionCase) -> None:
    (tmp_path / "debugged.py").write_text(DEBUGGED)
    wrong = msgspec.convert({"property_name": "oracle", "kind": "unwritten", "message": ""}, Verdict)
    path = counterexamples.save(counterexamples.signed("debugged.py:debugged", "unified", None, case, wrong), tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [SCRIPT, "replay", path.name, "--trust", "--in-process"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        input="p given['softmax_scale'] + 1\ncontinue\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"shape of q: ({case.num_tokens + case.padded_tokens}, 4, 8)\n" in done.stdout
    assert f"(Pdb) {case.softmax_scale + 1}\n" in done.stdout
    assert f"FAILED  {path.name}\n        64 of 128 elements wrong, 64 never written" in done.stdout
