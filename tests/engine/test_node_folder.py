"""A node of a cluster keeps no folder of an actor that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fuzz_attn.engine.ray_actor import LOCK, YOUNG_SECONDS, node_folder

HOLDS = """
import sys, time
from pathlib import Path
from fuzz_attn.engine.ray_actor import node_folder
with node_folder(Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def age(place: Path) -> None:
    """Let all locks look as if they were taken long ago."""
    then = time.time() - 2 * YOUNG_SECONDS
    for lock in place.glob(f"*{LOCK}"):
        os.utime(lock, (then, then))


def test_the_folder_ends_with_its_use(tmp_path: Path) -> None:
    with node_folder(tmp_path) as folder:
        assert folder.is_dir()
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_deleted_when_its_owner_was_killed_and_not_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        held = Path(owner.stdout.readline().strip())
        age(tmp_path)
        with node_folder(tmp_path):
            assert (held / "file").exists(), "its owner lives"
        owner.kill()
    with node_folder(tmp_path):
        assert not held.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_new_lock_may_be_about_to_be_taken(tmp_path: Path) -> None:
    (tmp_path / f"fuzz-attn-ray-x{LOCK}").touch()
    with node_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [f"fuzz-attn-ray-x{LOCK}"]
