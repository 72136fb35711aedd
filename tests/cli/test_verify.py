"""The Python API: verify returns a typed report, and says clearly what it cannot fuzz."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fuzz_attn
from fuzz_attn.api import IN_WORKER
from fuzz_attn.engine.listeners.results import RunReport
from fuzz_attn.errors import FuzzAttnError, TargetError

TORCH = Path(__file__).parents[1] / "sample_targets" / "torch_attention.py"

SCRIPT = """
import attention
import fuzz_attn

if __name__ == "__main__":
    right = fuzz_attn.verify(attention.unified_attention, max_cases=4, workers=1, out="out")
    assert right.ok and not right.failures and right.cases == 4 and right.seconds > 0.0, right
    wrong = fuzz_attn.verify("attention.py:last_row_unwritten", max_cases=3, workers=1, seed=1, out="out")
    assert not wrong.ok
    failure = wrong.failures[0]
    assert failure.kind == "oracle (unwritten)" and "never written" in failure.message, failure
    assert failure.path.startswith("out/counterexamples/"), failure.path
    assert failure.counterexample.case.sequences
"""


def test_verify_returns_a_report(tmp_path: Path) -> None:
    shutil.copy(TORCH, tmp_path / "attention.py")
    (tmp_path / "grade.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "grade.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and path.name[0] not in "._") == ["out"]


@pytest.mark.slow
def test_a_rounding_is_stated_and_an_undeclared_one_is_named(tmp_path: Path) -> None:
    def report(cases: int, **rounding: str) -> RunReport:
        target, binding = f"{TORCH.parent / 'narrow_attention.py'}:bfloat16_scores", {"rounding": rounding}
        return fuzz_attn.verify(target, binding=binding, max_cases=cases, workers=1, seed=1, out=tmp_path)

    assert report(6, scores="bfloat16").ok
    found = report(20, partials="query").failures[0].counterexample
    assert "It passes with rounding.scores = 'bfloat16'" in found.verdict.hint
    assert found.binding is not None
    assert found.binding.rounding == {"partials": "query"}


def test_verify_in_a_script_without_a_guard_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IN_WORKER, "1")
    with pytest.raises(TargetError, match="call it under `if __name__ == '__main__':`"):
        fuzz_attn.verify("unified", max_cases=1)


INTERACTIVE = """
import fuzz_attn

def attend(): ...

try:
    fuzz_attn.verify(attend)
except fuzz_attn.FuzzAttnError as error:
    print(error)
"""


def test_a_function_of_a_notebook_is_a_clear_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=INTERACTIVE, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("target=attend is defined in a notebook or an interactive session, ")
    assert "%%writefile kernel.py" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_time": 0}, "max_time=0 must be above 0"),
        ({"max_time": float("nan")}, "max_time=nan must be above 0"),
        ({"max_cases": -1}, "max_cases=-1 must be above 0"),
        ({"workers": 0}, "workers=0 must be above 0"),
        ({"family": "split"}, "family='split' must be one of: unified, "),
        ({"backend": "gpu"}, "backend='gpu' must be one of: auto, "),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(FuzzAttnError, match=message):
        fuzz_attn.verify("unified", **arguments)  # type: ignore[arg-type] # wrong on purpose


def test_a_bad_target_raises(tmp_path: Path) -> None:
    with pytest.raises(FuzzAttnError, match=r"^target file 'gone\.py' does not exist$"):
        fuzz_attn.verify("gone.py:attend", max_cases=1, workers=1, out=tmp_path)


def test_the_import_is_cheap() -> None:
    code = (
        "import sys, fuzz_attn; print(sorted({'torch', 'triton', 'pytest', 'hypothesis', 'rich'} & set(sys.modules)))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_START"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "[]\n"
