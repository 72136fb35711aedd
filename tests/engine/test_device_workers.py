"""Devices: which process starts them, what a broken one costs, which GPU a worker gets. The device is simulated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fuzz_attn.backends.gpus import gpu_environment, visible_gpus
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.errors import FuzzAttnError, TargetError

Devices = Callable[[str], IsolatedWorker]

SHORT, KILLED, BREAKS = (
    AttentionCase(sequences=(Sequence(1, length - 1),), heads=HeadLayout(head_size=4)) for length in (1, 11, 16)
)
"""The target ``misbehaves_by_length`` passes the first, kills its process on the second and breaks the device on the
third."""


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    return tmp_path / "starts"


@pytest.fixture
def on_device(starts: Path, spec: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Devices:
    """Return a function from a device's defect to a worker on that device."""

    def worker(defect: str) -> IsolatedWorker:
        monkeypatch.setenv("FUZZ_ATTN_TEST_DEVICE", defect)
        monkeypatch.setenv("FUZZ_ATTN_TEST_STARTS", str(starts))
        monkeypatch.syspath_prepend(Path(__file__).parent)
        command = (sys.executable, "-P", "-m", "device_worker")  # so it is a fork of the tests' server
        return IsolatedWorker(Setup(spec("misbehaves_by_length")), command=command)

    return worker


def test_a_broken_device_is_a_crash_and_costs_only_a_start_of_the_device(on_device: Devices, starts: Path) -> None:
    with on_device("none") as worker:
        server = worker.process
        for case in (BREAKS, BREAKS, KILLED):
            verdict = worker.judge(Order(case)).verdict
            assert (verdict.property_name, verdict.kind) == ("oracle", "crash")
            if case == BREAKS:
                said = "broke the device for its process; it last printed:\nCUDA error: longest=16 must not exceed 8"
                assert verdict.message.startswith(said)
            assert worker.judge(Order(SHORT)).verdict.passed
        assert worker.process is server, "torch and the target would be imported anew"
        assert worker.deaths == 3
    # The first fork starts the device twice: to see whether it can, and as every process that is set up.
    assert starts.read_text() == "ff" + "fff"


def test_time_to_compile_is_no_hang(on_device: Devices) -> None:
    with on_device("slow compiler") as worker:
        worker.launch_seconds = 7.0  # for the launch and the oracle; compiling takes eight
        verdict = worker.judge(Order(SHORT)).verdict
        assert verdict.passed, verdict.message


def test_time_without_word_of_a_compiler_is_a_hang(on_device: Devices) -> None:
    with on_device("slow") as worker:
        worker.launch_seconds = 2.0
        assert worker.judge(Order(SHORT)).verdict.kind == "timeout"


def test_if_forks_cannot_start_the_device_the_process_itself_answers(on_device: Devices, starts: Path) -> None:
    with on_device("no forks") as worker:
        assert worker.judge(Order(SHORT)).verdict.passed
        assert worker.judge(Order(BREAKS)).verdict.message.startswith("broke the device for its process")
        assert worker.judge(Order(SHORT)).verdict.passed
        assert worker.deaths == 1
    assert starts.read_text() == "fs" * 2


@pytest.mark.parametrize(
    ("defect", "error", "message"),
    [
        ("dead", FuzzAttnError, "^the device does not answer$"),
        ("cannot add", FuzzAttnError, "^the device cannot add$"),
        ("dies early", TargetError, "ended its process with status 7 while it was loaded$"),
    ],
)
def test_an_unusable_device_is_reported_before_the_first_case(
    defect: str, error: type[Exception], message: str, on_device: Devices
) -> None:
    worker = on_device(defect)
    with pytest.raises(error, match=message):
        worker.__enter__()


def test_a_device_that_another_worker_checks_is_not_checked_again(on_device: Devices) -> None:
    worker = on_device("cannot add")
    worker.setup = msgspec.structs.replace(worker.setup, checks_device=False)
    with worker:
        assert worker.ready.shims == ()


def test_a_device_that_does_not_start_again_is_no_failure_of_the_target(on_device: Devices) -> None:
    with on_device("one start") as worker:
        assert worker.judge(Order(BREAKS)).verdict.kind == "crash"
        with pytest.raises(FuzzAttnError, match=r"^the device does not answer$"):
            worker.judge(Order(SHORT))


@pytest.mark.parametrize(
    ("given", "nodes", "expected"),
    [
        (None, [], []),
        (None, ["nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"], ["0", "1"]),
        ("", ["nvidia0", "nvidia1"], []),
        ("5", [], ["5"]),
        ("2, 7,GPU-1f", ["nvidia0"], ["2", "7", "GPU-1f"]),
    ],
)
def test_gpus_are_the_callers_or_the_machines(
    given: str | None, nodes: list[str], expected: list[str], tmp_path: Path
) -> None:
    for name in nodes:
        (tmp_path / name).touch()
    assert visible_gpus({} if given is None else {"CUDA_VISIBLE_DEVICES": given}, tmp_path) == expected


def test_workers_are_spread_over_the_gpus(tmp_path: Path) -> None:
    given = [
        gpu_environment(index, {"CUDA_VISIBLE_DEVICES": "4,6,7"}, tmp_path)["CUDA_VISIBLE_DEVICES"]
        for index in range(5)
    ]
    assert given == ["4", "6", "7", "4", "6"]


@pytest.mark.parametrize("given", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "3"}])
def test_without_a_choice_of_gpus_none_is_set(given: dict[str, str], tmp_path: Path) -> None:
    assert gpu_environment(1, given, tmp_path) == {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
