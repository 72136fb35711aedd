"""Processes that share a GPU start it one after the other."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from fuzz_attn.backends import gpus
from fuzz_attn.backends.gpus import FOLDER, PIPES, pipes_of, start_in_turn

LONG = 1000.0


class Starts:
    """Threads that start a GPU, and how many have done so at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = self.most = 0
        self._changing = threading.Lock()

    def start(self, gpu: str, barrier: threading.Barrier | None = None) -> None:
        with start_in_turn({FOLDER: str(self.folder), PIPES: str(pipes_of(gpu, self.folder))}):
            with self._changing:
                self.now += 1
                self.most = max(self.most, self.now)
            (nullcontext if barrier is None else barrier.wait)()
            time.sleep(0.02)
            with self._changing:
                self.now -= 1


def all_at_once(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_one_process_after_the_other_starts_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "LONGEST_START", LONG)
    starts = Starts(tmp_path)
    all_at_once(*(threading.Thread(target=starts.start, args=("0",)) for _ in range(4)))
    assert (starts.now, starts.most) == (0, 1)


def test_different_gpus_start_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "LONGEST_START", LONG)
    starts, both = Starts(tmp_path), threading.Barrier(2, timeout=LONG)
    all_at_once(*(threading.Thread(target=starts.start, args=(gpu, both)) for gpu in "01"))
    assert starts.most == 2


def test_one_that_takes_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "LONGEST_START", 0.05)
    starts, both = Starts(tmp_path), threading.Barrier(2, timeout=LONG)
    all_at_once(*(threading.Thread(target=starts.start, args=("0", both)) for _ in range(2)))
    assert starts.most == 2


def test_without_a_service_nobody_waits() -> None:
    with start_in_turn({}), start_in_turn({}):
        pass


def test_without_the_folder_of_the_service_nobody_waits(tmp_path: Path) -> None:
    environment = {FOLDER: str(tmp_path / "gone"), PIPES: str(tmp_path / "gone" / "gpu-0")}
    with start_in_turn(environment), start_in_turn(environment):
        pass
