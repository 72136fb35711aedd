"""Seeded bugs as `make time-to-bug` plants them: in a copy of the package, and in a user's file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fuzz_attn.case.families import FAMILIES
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs, seeded_bug
from fuzz_attn.targets.loading import load_target

TABLES = Path(__file__).parents[2] / "fuzz_attn" / "mutation" / "seeded" / "tables"


@pytest.fixture(scope="module")
def planting(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """Return the module that plants bugs."""
    return module_at(Path(__file__).parents[1] / "benchmarks" / "time_to_bug" / "planting.py")


def test_a_sample_has_all_families_and_no_bug_twice(planting: ModuleType) -> None:
    bugs = [bug for bug in load_seeded_bugs(TABLES) if bug.file not in ("merge_states.toml", "cache_write.toml")]
    chosen = planting.sample(bugs, 40, 1)
    assert [family for _, family in chosen[: 2 * len(FAMILIES)]] == [*FAMILIES, *FAMILIES]
    assert len({bug.name for bug, _ in chosen}) == 40
    assert all(family in bug.families for bug, family in chosen)
    assert planting.sample(bugs, 7, 1) == chosen[:7]
    assert planting.sample(bugs, 40, 2) != chosen
    assert len(planting.sample(load_seeded_bugs(TABLES), 10_000, 1)) == len(bugs)


def test_a_bug_is_planted_in_a_copy_of_the_package(planting: ModuleType, tmp_path: Path) -> None:
    bug = seeded_bug(TABLES, "scales_swapped")
    planted = planting.plant(bug, "paged", "built-in", tmp_path)
    (edit,) = bug.edits
    assert (planted.target, planted.python_path) == ("paged", str(tmp_path))
    assert edit.replacement in (tmp_path / "fuzz_attn" / "kernels" / edit.file).read_text()


def test_a_bug_is_planted_in_a_file_of_a_user(planting: ModuleType, tmp_path: Path) -> None:
    bug = seeded_bug(TABLES, "scales_swapped")
    planted = planting.plant(bug, "unified", "path", tmp_path)
    (edit,) = bug.edits
    assert planted.python_path == ""
    assert edit.replacement in (tmp_path / "edited_kernels" / edit.file).read_text()
    assert load_target(planted.target).domain.family == "unified"


def test_a_file_declares_what_a_bug_needs_and_no_signature_promises(planting: ModuleType, tmp_path: Path) -> None:
    bug = seeded_bug(TABLES, "output_offset_in_32_bits")
    declared = load_target(planting.plant(bug, "paged", "path", tmp_path / "declared").target)
    plain = load_target(planting.plant(None, "paged", "path", tmp_path / "plain").target)
    assert declared.domain.allows("far_axes")
    assert not plain.domain.allows("far_axes")
    assert declared.call.__module__ == "edited_kernels.paged_attention"


def test_a_small_wheel_has_the_python_files_only(module_at: Callable[[Path], ModuleType], tmp_path: Path) -> None:
    program = module_at(Path(__file__).parents[1] / "benchmarks" / "time_to_bug" / "small_wheel.py")
    with zipfile.ZipFile(tmp_path / "name-1.0-cp38-abi3-linux_x86_64.whl", "w") as whole:
        whole.writestr("name/__init__.py", "text = 1\n")
        whole.writestr("name/_C.so", b"\0")
    small = program.small_wheel(tmp_path / "name-1.0-cp38-abi3-linux_x86_64.whl", tmp_path / "small")
    assert small == tmp_path / "small" / "name-1.0-py3-none-any.whl"
    with zipfile.ZipFile(small) as written:
        assert {name: written.read(name) for name in written.namelist()} == {"name/__init__.py": b"text = 1\n"}
