"""The workflows run make targets that exist, with variables that the Makefile reads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fuzz_attn.backends import BACKEND_NAMES

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").iterdir())}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, flags=re.MULTILINE))
SET_FOR_PIP = {"PIP_EXTRA_INDEX_URL"}


def parsed(name: str) -> dict[Any, Any]:
    workflow = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))
    assert isinstance(workflow, dict)
    return workflow


def jobs_of(name: str) -> Iterator[dict[str, Any]]:
    yield from parsed(name)["jobs"].values()


def inputs_of(name: str) -> dict[str, Any]:
    inputs = parsed(name)[True]["workflow_dispatch"]["inputs"]  # YAML 1.1 reads `on` as true
    assert isinstance(inputs, dict)
    return inputs


def test_there_are_three_workflows() -> None:
    assert set(WORKFLOWS) == {"pull-request", "nightly", "replay"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_commands_are_make_targets(name: str) -> None:
    commands = [step["run"] for job in jobs_of(name) for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        assert command == ".ci/run" or (command.startswith("make ") and command.removeprefix("make ") in TARGETS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_variables_are_read_by_the_makefile(name: str) -> None:
    given = {variable for job in jobs_of(name) for variable in job.get("env", {})} - SET_FOR_PIP
    assert given <= set(re.findall(r"\$\((\w+)\)", MAKEFILE))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_inputs_are_declared_and_used(name: str) -> None:
    used = set(re.findall(r"\binputs\.(\w+)", WORKFLOWS[name].read_text(encoding="utf-8")))
    assert used == (set() if name == "pull-request" else set(inputs_of(name)))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_permissions_and_time_are_limited(name: str) -> None:
    assert parsed(name)["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 180 for job in jobs_of(name))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_files_exist(name: str) -> None:
    text = WORKFLOWS[name].read_text(encoding="utf-8")
    for named in re.findall(r"(?<![\w/.])(?:tests|fuzz_attn|kernels|strategies)(?:/[\w.-]+)+", text):
        assert (ROOT / named).exists(), named


def test_nightly_uploads_its_output_in_any_case() -> None:
    (job,) = jobs_of("nightly")
    (kept,) = (step for step in job["steps"] if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert kept["if"] == "always()"
    assert f"--out {kept['with']['path']}" in made("nightly")
    assert int(inputs_of("nightly")["seconds"]["default"]) < 60 * job["timeout-minutes"]


def test_nightly_fuzzes_on_a_gpu_for_the_given_time() -> None:
    assert "fuzz-attn run --backend cuda --max-time 3600 --out" in made("nightly")
    assert "fuzz-attn run --backend cuda --max-time 77 --out" in made("nightly", "NIGHTLY_TIME=77")


def test_replay_takes_file_target_and_backend() -> None:
    inputs = inputs_of("replay")
    assert inputs["backend"]["options"] == list(BACKEND_NAMES)
    assert (ROOT / inputs["file"]["default"]).is_dir()
    given = made("replay", "FILES=a.json", "ARGS=--backend cuda --target m:f")
    assert "fuzz-attn replay a.json --backend cuda --target m:f" in given


def made(target: str, *variables: str) -> str:
    """Return the commands that make would run."""
    command = ["make", "--dry-run", "--old-file=.venv/.stamp", target, *variables]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
