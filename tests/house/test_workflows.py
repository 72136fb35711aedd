"""The workflows of this repository run make targets; those for other repositories run fuzz-attn.

``actionlint`` checks their syntax; it needs a program that is not in the environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.counterexamples import load, overwrite

ROOT = Path(__file__).parents[2]
ALL = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").iterdir())}
WORKFLOWS = {name: path for name, path in ALL.items() if not name.startswith("fuzz-")}
"""Those of this repository."""
REUSABLE = {name: path for name, path in ALL.items() if name.startswith("fuzz-")}
"""Those that other repositories call."""
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, flags=re.MULTILINE))
SET_FOR_PIP = {"PIP_EXTRA_INDEX_URL"}


def parsed(name: str) -> dict[Any, Any]:
    workflow = yaml.safe_load(ALL[name].read_text(encoding="utf-8"))
    assert isinstance(workflow, dict)
    return workflow


def jobs_of(name: str) -> Iterator[dict[str, Any]]:
    yield from parsed(name)["jobs"].values()


def inputs_of(name: str) -> dict[str, Any]:
    by = "workflow_call" if name in REUSABLE else "workflow_dispatch"
    inputs = parsed(name)[True][by]["inputs"]  # YAML 1.1 reads `on` as true
    assert isinstance(inputs, dict)
    return inputs


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in jobs_of(name) for step in job["steps"]]


def test_there_are_three_workflows_of_each_kind() -> None:
    assert set(WORKFLOWS) == {"pull-request", "nightly", "replay"}
    assert set(REUSABLE) == {f"fuzz-{name}" for name in WORKFLOWS}


@pytest.mark.parametrize("name", ALL)
def test_actions_are_pinned_by_their_hash(name: str) -> None:
    """A tag can be moved to other code; the comment says which version the hash is."""
    used = re.findall(r"uses: (.*)", ALL[name].read_text(encoding="utf-8"))
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_an_action_has_one_version() -> None:
    used = {line for path in ALL.values() for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))}
    versions: dict[str, set[str]] = {}
    for action, version in (line.split("@") for line in used):
        versions.setdefault("/".join(action.split("/")[:2]), set()).add(version)
    assert {action: found for action, found in versions.items() if len(found) > 1} == {}


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


@pytest.mark.parametrize("name", ALL)
def test_inputs_are_declared_and_used(name: str) -> None:
    used = set(re.findall(r"\binputs\.(\w+)", ALL[name].read_text(encoding="utf-8")))
    assert used == (set() if name == "pull-request" else set(inputs_of(name)))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_permissions_and_time_are_limited(name: str) -> None:
    assert parsed(name)["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 180 for job in jobs_of(name))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_files_exist(name: str) -> None:
    text = ALL[name].read_text(encoding="utf-8")
    for named in re.findall(r"(?<![\w/.])(?:tests|fuzz_attn|kernels|strategies)(?:/[\w.-]+)+", text):
        assert (ROOT / named).exists(), named


def test_nightly_uploads_its_output_in_any_case() -> None:
    job = parsed("nightly")["jobs"]["fuzz"]
    (kept,) = (step for step in job["steps"] if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert kept["if"] == "always()"
    assert f"--out {kept['with']['path']}" in made("nightly")
    assert int(inputs_of("nightly")["seconds"]["default"]) < 60 * job["timeout-minutes"]


def test_nightly_fuzzes_on_a_gpu_for_the_given_time() -> None:
    assert "fuzz-attn run --backend cuda --max-time 3600 --out" in made("nightly")
    assert "fuzz-attn run --backend cuda --max-time 77 --out" in made("nightly", "NIGHTLY_TIME=77")


def test_slow_tests_run_every_night() -> None:
    steps = parsed("nightly")["jobs"]["slow"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make slow", "make examples", "make explanations"]
    assert "--hypothesis-seed=7" in made("examples", "SEED=7")
    assert "pytest -n auto --dist worksteal --durations=15 -m slow" in made("slow")


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


@pytest.mark.parametrize("name", REUSABLE)
def test_reusable_workflows_are_called_only_and_need_a_target(name: str) -> None:
    assert set(parsed(name)[True]) == {"workflow_call"}
    required = [each for each, described in inputs_of(name).items() if described.get("required")]
    assert required == ["target"]
    assert all(described["description"] for described in inputs_of(name).values())
    assert parsed(name)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", REUSABLE)
def test_inputs_reach_the_shell_as_variables(name: str) -> None:
    """An expression inside a script would run whatever its value says."""
    for step in steps_of(name):
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("name", REUSABLE)
def test_reusable_workflows_install_the_repository_that_they_are_part_of(name: str) -> None:
    """No index has the package; the context `github` is that of the caller."""
    (ours,) = (step["with"] for step in steps_of(name) if "repository" in step.get("with", {}))
    assert (ours["repository"], ours["ref"]) == ("${{ job.workflow_repository }}", "${{ job.workflow_sha }}")
    assert f"./{ours['path']}" in inputs_of(name)["install"]["default"]
    assert not re.search(r"\bfuzz-attn\b(?!/)", inputs_of(name)["install"]["default"].replace("./.fuzz-attn", ""))


@pytest.mark.parametrize("name", REUSABLE)
def test_two_calls_in_one_workflow_keep_two_artifacts(name: str, tmp_path: Path) -> None:
    """The jobs of both have the same id, and an artifact's name must be new."""
    (kept,) = (step for step in steps_of(name) if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert kept["with"]["name"] == "${{ steps.names.outputs.artifact }}"
    (step,) = (step for step in steps_of(name) if step.get("id") == "names")
    given = {"TARGET": 'a/b\\c.py:"f"|g', "GITHUB_RUN_ATTEMPT": "1", "GITHUB_OUTPUT": str(tmp_path / "outputs")}
    for _ in range(2):
        subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env={**os.environ, **given}, check=True)
    lines = (tmp_path / "outputs").read_text().splitlines()
    names = {line.removeprefix("artifact=") for line in lines}
    assert len(names) == len(lines) == 2
    assert all(re.fullmatch(r"fuzz-attn-[\w.-]+", each) for each in names), names


@pytest.mark.parametrize("name", ["fuzz-pull-request", "fuzz-nightly"])
def test_the_limit_of_a_job_follows_the_seconds_of_fuzzing(name: str, tmp_path: Path) -> None:
    (tmp_path / "timeout").write_text('#!/bin/sh\necho "limit $2"\n')
    (tmp_path / "timeout").chmod(0o755)
    (script,) = (step["run"] for step in steps_of(name) if step.get("name") == "fuzz")
    for seconds, limit in (("300", 1200), ("36000", 36900), ("0.5", 900)):
        given = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SECONDS_OF_FUZZING": seconds}
        done = subprocess.run(["bash", "-c", script], env=given, check=True, capture_output=True, text=True)
        assert done.stdout == f"limit {limit}\n"
    (job,) = jobs_of(name)
    assert job["timeout-minutes"] in (360, "${{ inputs.timeout_minutes || 7200 }}")


@pytest.mark.parametrize("name", REUSABLE)
def test_reusable_workflows_keep_their_results_in_any_case(name: str) -> None:
    (kept,) = (step for step in steps_of(name) if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert kept["if"] == "always()"


def test_a_night_restores_and_saves_one_folder() -> None:
    steps = {step["uses"].partition("@")[0]: step for step in steps_of("fuzz-nightly") if "uses" in step}
    restored, saved = steps["actions/cache/restore"], steps["actions/cache/save"]
    assert saved["if"] == "always()"
    assert restored["with"]["path"] == saved["with"]["path"] == "fuzz-attn-results"
    assert restored["with"]["key"] == saved["with"]["key"]
    assert saved["with"]["key"].startswith(restored["with"]["restore-keys"])
    (job,) = jobs_of("fuzz-nightly")
    assert job["env"]["RESULTS"] == saved["with"]["path"]
    assert job["env"]["TRITON_CACHE_DIR"].endswith(f"/{saved['with']['path']}/triton")
    assert job["env"]["FUZZ_ATTN_CACHE"].endswith(f"/{saved['with']['path']}/programs")


def test_a_pull_request_restores_and_saves_its_lowered_programs() -> None:
    steps = {step["uses"].partition("@")[0]: step for step in steps_of("fuzz-pull-request") if "uses" in step}
    restored, saved = steps["actions/cache/restore"]["with"], steps["actions/cache/save"]["with"]
    assert steps["actions/cache/save"]["if"] == "always()"
    assert restored["path"] == saved["path"]
    assert restored["key"] == saved["key"]
    first, second = restored["restore-keys"].splitlines()
    assert saved["key"].startswith(first)
    assert first.startswith(second)
    assert "github.event.number" in first
    (job,) = jobs_of("fuzz-pull-request")
    assert job["env"]["FUZZ_ATTN_CACHE"].endswith(f"/{saved['path']}")
    assert "inputs.seed || github.event.number" in job["env"]["SEED"]


def test_docs_name_the_key_of_the_lowered_programs() -> None:
    steps = {step["uses"].partition("@")[0]: step for step in steps_of("fuzz-pull-request") if "uses" in step}
    key = steps["actions/cache/restore"]["with"]["key"]
    assert key in (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a user's repository with a kernel that is wrong, in which `fuzz-attn` is installed."""
    shutil.copy(ROOT / "tests" / "sample_targets" / "torch_attention.py", tmp_path)
    return tmp_path


def played(name: str, repository: Path, *, target: str, **inputs: str) -> tuple[int, str, str]:
    """Run the scripts of a reusable workflow; return the exit status, the output and the summary of the job."""
    (job,) = jobs_of(name)
    given = {key: str(each.get("default", "")) for key, each in inputs_of(name).items()}
    given |= {"target": target, "install": "true", **inputs}
    summary = repository.parent / f"{repository.name}-summary.md"
    summary.touch()
    outputs = repository.parent / f"{repository.name}-outputs"
    variables = {key: given.get(_input(value), value) for key, value in job["env"].items()}
    environment = {**os.environ, **variables, "GITHUB_RUN_ATTEMPT": "1"}
    environment |= {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(outputs)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    status, output = 0, ""
    for step in job["steps"]:
        if "run" in step and not status:
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(shell, cwd=repository, env=environment, check=False, capture_output=True, text=True)
            status, output = done.returncode, output + done.stdout + done.stderr
    return status, output, summary.read_text(encoding="utf-8")


def _input(expression: str) -> str:
    named = re.fullmatch(r"\$\{\{ inputs\.(\w+)(?: \|\| .+)? \}\}", expression)
    return named[1] if named else ""


@pytest.mark.slow
def test_the_steps_find_a_bug_and_replay_it_until_it_is_known(repository: Path) -> None:
    options = {"target": "torch_attention.py:last_row_unwritten"}
    arguments = "--max-cases 12 --workers 1 --seed 1"
    status, output, summary = played("fuzz-pull-request", repository, arguments=arguments, **options)
    assert status == 1, output
    assert "::error file=fuzz-attn-results/counterexamples/" in output
    assert "| failure | cases |" in summary
    assert (repository / "fuzz-attn-results" / "junit.xml").exists()
    (file,) = (repository / "fuzz-attn-results" / "counterexamples").rglob("*.json")
    saved = repository / "tests" / "counterexamples" / file.parent.name / file.name
    saved.parent.mkdir(parents=True)
    shutil.copy(file, saved)
    status, output, summary = played("fuzz-replay", repository, **options)
    assert (status, "::error file=tests/counterexamples/" in output) == (1, True), output
    assert "1 replayed, 1 failed" in summary
    assert "FAILED" in (repository / "fuzz-attn-replay.txt").read_text(encoding="utf-8")
    found = msgspec.structs.replace(load(saved), status="known", reference="#7", because="it waits")
    overwrite(found, saved)
    night = played("fuzz-nightly", repository, arguments=arguments, backend="simulator", **options)
    assert night[0] == 0, night[1]
    assert "::notice file=" in night[1]
    assert "::error" not in night[1]
