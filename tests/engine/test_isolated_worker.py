"""A target runs in a process of its own: a death of the process is a verdict, and the next case is judged."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence
from fuzz_attn.engine import isolated_worker
from fuzz_attn.engine.isolated_worker import COPIED, IsolatedWorker, Wait
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import FuzzAttnError, OutOfTimeError, TargetError
from fuzz_attn.workers.fork_server import VARIABLE
from fuzz_attn.workers.worker_process import KEPT_BYTES, LaunchClock, WorkerProcess

SHORT = AttentionCase(sequences=(Sequence(1),), heads=HeadLayout(head_size=4))


A_HANG = 1800.0
"""Seconds after which a wait counts as a hang, on the slowest machine."""
ENOUGH_LOOKS = 20
"""A loop that printed as much as is kept goes on printing for so many looks at it."""


def of_length(seq_len: int) -> AttentionCase:
    return AttentionCase(sequences=(Sequence(1, seq_len - 1),), heads=HeadLayout(head_size=4))


KILLED, SEGFAULT, LEAVES, LEAVES_WELL, QUITS, RAISES, HANGS, PRINTS, FLOODS = (of_length(n) for n in range(11, 20))
ASKS, SIGNALS, SPEECHLESS, NO_TEXT, BOOK, INTERRUPTS = (of_length(n) for n in range(20, 26))
LOWERS, RESIZES, PATCHES, CLOSES, REPLACES, WRITES, MOVES, FORKS = (of_length(n) for n in range(26, 34))
EXHAUSTS, PRINTS_ON, RAISES_LATER, CORRUPTS, SWAPS, RESIZES_QUERY, SLOW = (of_length(n) for n in range(34, 41))
"""The target ``misbehaves_by_length`` chooses what to do by the length of the longest sequence."""


@pytest.fixture(scope="module")
def shared(spec: Callable[[str], str]) -> Iterator[IsolatedWorker]:
    """One worker for all tests that must leave it usable."""
    with IsolatedWorker(Setup(spec("misbehaves_by_length"))) as worker:
        yield worker
        assert worker.judge(Order(SHORT)).verdict.passed


@pytest.fixture
def worker(shared: IsolatedWorker) -> IsolatedWorker:
    shared.deaths = 0
    shared.launch_seconds = 120.0
    return shared


def test_kernels_that_call_functions_of_triton_run_in_the_interpreter() -> None:
    """Triton decides when these are imported for what they are decorated."""
    with IsolatedWorker(Setup("unified", backend="interpreter")) as worker:
        assert worker.judge(Order(SHORT)).verdict.passed


def test_ready_names_target_backend_and_family(worker: IsolatedWorker, spec: Callable[[str], str]) -> None:
    ready = worker.ready
    assert ready.target == spec("misbehaves_by_length")
    assert ready.slug.endswith("tests-sample_targets-misbehaving.py-misbehaves_by_length")
    assert (ready.family, ready.device) == ("unified", "cpu")
    assert ready.backend in BACKEND_NAMES[1:], "auto has become one that there is"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (KILLED, "died of SIGSEGV; it last printed:\nabout to die\n"),
        (SEGFAULT, "died of SIGSEGV; it last printed:\nFatal Python error: Segmentation fault\n"),
        (SIGNALS, f"died of signal {signal.SIGRTMIN + 6}"),
        (LEAVES, "ended its process with status 3"),
        (LEAVES_WELL, "ended its process with status 0"),
        (CLOSES, "closed or replaced the file descriptors of its process"),
        (REPLACES, "closed or replaced the file descriptors of its process"),
        (CORRUPTS, "died of SIGSEGV"),
    ],
    ids=[
        "signal",
        "segmentation fault",
        "signal without a name",
        "exit status",
        "exit status 0",
        "closed files",
        "replaced files",
        "corrupt heap",
    ],
)
def test_a_death_is_a_verdict_and_the_next_case_is_judged(
    case: AttentionCase, message: str, worker: IsolatedWorker
) -> None:
    for deaths in (1, 2):
        verdict = worker.judge(Order(case)).verdict
        assert (verdict.property_name, verdict.kind) == ("oracle", "crash")
        assert verdict.message.startswith(message)
        assert worker.deaths == deaths
        assert worker.judge(Order(SHORT)).verdict.passed


def test_a_death_shows_the_targets_frames_and_none_of_ours(worker: IsolatedWorker) -> None:
    message = worker.judge(Order(SEGFAULT)).verdict.message
    assert 'misbehaving.py", line' in message
    assert "in _read_null_page" in message
    assert "fuzz_attn/" not in message
    assert "Extension modules" not in message


def test_the_set_up_process_survives_a_crash(worker: IsolatedWorker) -> None:
    set_up = worker.process
    for _ in range(5):
        assert worker.judge(Order(KILLED)).verdict.kind == "crash"
    assert worker.process is set_up, "torch and the target would be imported anew after each crash"


def test_a_worker_killed_from_outside_is_replaced(worker: IsolatedWorker) -> None:
    assert worker.judge(Order(SHORT)).verdict.passed
    assert worker.process is not None
    os.killpg(worker.process.pid, signal.SIGKILL)
    assert worker.judge(Order(SHORT)).verdict.message.startswith("died of SIGKILL")
    assert worker.judge(Order(SHORT)).verdict.passed


def test_an_exception_is_a_verdict(worker: IsolatedWorker) -> None:
    verdict = worker.judge(Order(RAISES)).verdict
    assert verdict.kind == "exception"
    assert "raised RuntimeError: longest=16 must not exceed 8 at " in verdict.message
    assert worker.deaths == 0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (QUITS, "raised SystemExit: enough at "),
        (INTERRUPTS, "raised KeyboardInterrupt: "),
        (RESIZES, r"resized the output from \(1, 1, 4\) to \(0,\)"),
        (SWAPS, r"resized the output$"),
        (RESIZES_QUERY, r"resized query from \(1, 1, 4\) to \(1,\)"),
    ],
    ids=["SystemExit", "KeyboardInterrupt", "smaller output", "other output", "query"],
)
def test_what_a_target_does_instead_of_returning_is_a_verdict(
    case: AttentionCase, words: str, worker: IsolatedWorker
) -> None:
    verdict = worker.judge(Order(case)).verdict
    assert (verdict.property_name, verdict.kind) == ("oracle", "exception")
    assert re.match(f"the target {words}", verdict.message)
    assert worker.deaths == 0


def test_a_target_that_breaks_the_harness_twice_fails(worker: IsolatedWorker) -> None:
    verdict = worker.judge(Order(PATCHES)).verdict
    assert (verdict.property_name, verdict.kind) == ("oracle", "crash")
    assert re.match(r"broke the harness, in a fresh process too: TypeError: .* at \S+:\d+$", verdict.message)
    assert worker.deaths == 2
    assert worker.judge(Order(SHORT)).verdict.passed


def test_an_exception_that_comes_late_is_no_error_of_the_harness(worker: IsolatedWorker) -> None:
    assert worker.judge(Order(RAISES_LATER)).verdict.kind == "crash"
    assert worker.judge(Order(SHORT)).verdict.passed


@pytest.mark.parametrize("case", [LOWERS, MOVES], ids=["recursion limit", "current folder"])
def test_process_state_that_a_target_changes_is_restored(case: AttentionCase, worker: IsolatedWorker) -> None:
    for _ in range(3):
        assert worker.judge(Order(case)).verdict.passed
    assert worker.deaths == 0


def test_a_target_that_forks_gives_one_answer(worker: IsolatedWorker) -> None:
    assert worker.judge(Order(FORKS)).verdict.passed
    assert worker.judge(Order(SHORT, digest=True)).digest
    assert worker.deaths == 0


def test_a_target_that_writes_to_the_connection_fails(worker: IsolatedWorker) -> None:
    worker.launch_seconds = 20.0
    verdict = worker.judge(Order(WRITES)).verdict
    assert verdict.message.startswith("closed or replaced the file descriptors of its process")
    assert worker.judge(Order(SHORT)).verdict.passed


def test_an_endless_loop_that_prints_keeps_little(worker: IsolatedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker.judge(Order(SHORT)).verdict.passed
    worker.launch_seconds = A_HANG
    process = worker.process
    assert process is not None
    sizes: list[int] = []
    original = process.receive

    def watched(limit: float | None = None) -> object:
        while not process.connection.poll(0.05) and sizes.count(KEPT_BYTES) < ENOUGH_LOOKS:
            sizes.append(len(process.printed))
        return original(time.monotonic())

    with monkeypatch.context() as patched:  # the process goes on after the loop
        patched.setattr(process, "receive", watched)
        patched.setattr(LaunchClock, "over", lambda clock: "it has printed enough")
        assert worker.judge(Order(PRINTS_ON)).verdict.kind == "timeout"
    assert max(sizes) == KEPT_BYTES


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say how much memory a process uses")
def test_a_target_that_exhausts_memory_fails_and_the_next_case_is_judged(spec: Callable[[str], str]) -> None:
    with IsolatedWorker(Setup(spec("misbehaves_by_length"), memory=2**30)) as worker:
        for _ in range(2):
            assert worker.judge(Order(SHORT)).verdict.passed
            verdict = worker.judge(Order(EXHAUSTS)).verdict
            assert (verdict.kind, verdict.message) == ("crash", "exceeded its memory limit of 1 GiB")
        assert worker.deaths == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say how much memory a process uses")
def test_a_copy_of_a_tensor_with_few_of_its_addresses_in_memory_is_no_failure(spec: Callable[[str], str]) -> None:
    far = msgspec.structs.replace(EXHAUSTS, pages=PageLayout(first_block=2**24))
    with IsolatedWorker(Setup(spec("misbehaves_by_length"), memory=2**30)) as worker:
        answer = worker.judge(Order(far))
        assert (answer.judged, answer.unsupported) == (False, COPIED)
        assert worker.judge(Order(SHORT)).verdict.passed


def test_a_failure_of_the_harness_on_a_built_in_target_is_an_error(spec: Callable[[str], str]) -> None:
    with IsolatedWorker(Setup(spec("misbehaves_by_length"))) as worker:
        worker.setup = Setup("unified")  # the process has loaded the target that patches torch
        with pytest.raises(FuzzAttnError, match=r"(?s)^fuzz_attn itself failed on a case:\nTraceback .*not callable"):
            worker.judge(Order(PATCHES))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (SPEECHLESS, r"_NoTextError: \(its text raised RuntimeError\)"),
        (NO_TEXT, r"RuntimeError: half of a pair: \\ud800"),
        (BOOK, r"RuntimeError: (word ){800} \.\.\. \(496000 more characters\)"),
    ],
    ids=["speechless", "no text", "book"],
)
def test_an_exception_with_any_text_is_a_verdict(case: AttentionCase, words: str, worker: IsolatedWorker) -> None:
    verdict = worker.judge(Order(case)).verdict
    assert verdict.kind == "exception"
    assert re.search(rf"raised {words} at .*misbehaving\.py:\d+", verdict.message)
    assert worker.deaths == 0


def test_a_hang_is_a_verdict_and_the_next_case_is_judged(worker: IsolatedWorker) -> None:
    assert worker.judge(Order(SHORT)).verdict.passed
    worker.launch_seconds = 1.0
    assert worker.judge(Order(HANGS)).verdict.message == "the launch did not end within 1 s"
    worker.launch_seconds = 120.0
    assert worker.judge(Order(SHORT)).verdict.passed


@pytest.fixture
def impatient(worker: IsolatedWorker, monkeypatch: pytest.MonkeyPatch) -> IsolatedWorker:
    """Return a worker that suspects a launch after half a second: the slow one takes one and a half."""
    monkeypatch.setattr(isolated_worker, "LEAST_PATIENCE", 0.5)
    monkeypatch.setattr(isolated_worker, "PATIENCE", 0)
    assert worker.judge(Order(SHORT)).verdict.passed
    return worker


def test_a_slow_case_is_no_hang(impatient: IsolatedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    suspected: list[Order] = []
    judge_again = impatient._judge_apart

    def noted(order: Order, deadline: float | None, wait: Wait, *, shared: bool) -> Answer:
        suspected.append(order)
        return judge_again(order, deadline, wait, shared=shared)

    monkeypatch.setattr(impatient, "_judge_apart", noted)
    answer = impatient.judge(Order(SLOW), wait="short, then full")
    assert (answer.verdict.passed, answer.notes, suspected) == (True, (), [Order(SLOW)])
    monkeypatch.setattr(isolated_worker, "PATIENCE", 2)
    assert impatient.patience >= 3.0, "it has learned how long an order may take"
    impatient.launch_seconds = 2.5
    assert impatient.patience == 2.5


def test_a_hang_lasts_for_the_full_limit_in_a_new_process(impatient: IsolatedWorker) -> None:
    impatient.launch_seconds = 1.0
    started, set_up = time.monotonic(), impatient.process
    answer = impatient.judge(Order(HANGS), wait="short, then full")
    assert time.monotonic() - started >= 1.5
    assert (answer.verdict.kind, answer.verdict.message) == ("timeout", "the launch did not end within 1 s")
    assert answer.fresh
    assert impatient.process is set_up, "torch and the target would be imported anew"
    impatient.launch_seconds = 120.0
    assert impatient.judge(Order(SHORT)).verdict.passed


def test_a_short_wait_says_how_short_it_was(impatient: IsolatedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_worker, "LEAST_PATIENCE", 1.0)
    for _ in range(2):
        answer = impatient.judge(Order(HANGS), wait="short")
        assert (answer.verdict.message, answer.fresh) == ("the launch did not end within 1 s", False)


def test_an_order_for_more_than_a_verdict_may_take_the_full_limit(impatient: IsolatedWorker) -> None:
    assert impatient.judge(Order(SLOW), wait="short").verdict.kind == "timeout"
    assert impatient.judge(Order(SHORT, probes=(SLOW,)), wait="short").refusals == (None,)


def test_where_no_fork_answers_the_process_ends_with_its_launch(
    impatient: IsolatedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerProcess, "kill_forks", lambda process: False)
    set_up = impatient.process
    assert impatient.judge(Order(HANGS), wait="short").verdict.kind == "timeout"
    assert impatient.judge(Order(SHORT)).verdict.passed
    assert impatient.process is not set_up


def test_a_deadline_ends_a_suspected_launch_without_a_verdict(impatient: IsolatedWorker) -> None:
    with pytest.raises(OutOfTimeError):
        impatient.judge(Order(HANGS), deadline=time.monotonic() + 1.5, wait="short, then full")
    assert impatient.judge(Order(SHORT)).verdict.passed


def test_a_deadline_ends_a_launch_without_a_verdict(worker: IsolatedWorker) -> None:
    assert worker.judge(Order(SHORT)).verdict.passed
    with pytest.raises(OutOfTimeError):  # and not the verdict that a launch ran into its own limit
        worker.judge(Order(HANGS), deadline=time.monotonic() + 0.5)
    with pytest.raises(OutOfTimeError):
        worker.judge(Order(SHORT), deadline=time.monotonic() + 0.01)  # while it is replaced
    assert worker.judge(Order(SHORT)).verdict.passed


def test_an_interrupted_order_leaves_no_answer_for_the_next(
    worker: IsolatedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(WorkerProcess, "receive", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.judge(Order(SHORT))
    assert worker.judge(Order(SHORT, digest=True)).digest


def _interrupted(process: object, limit: float) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("case", [PRINTS, FLOODS], ids=["messages", "megabytes"])
def test_output_of_a_target_does_no_harm(case: AttentionCase, worker: IsolatedWorker) -> None:
    for _ in range(6):
        assert worker.judge(Order(case)).verdict.passed
    assert worker.process is not None
    assert len(worker.process.printed) <= KEPT_BYTES


def test_a_target_that_reads_standard_input_takes_no_order_away(worker: IsolatedWorker) -> None:
    worker.launch_seconds = 20.0
    verdict = worker.judge(Order(ASKS)).verdict
    assert verdict.message.startswith("the target raised EOFError: EOF when reading a line at ")
    assert worker.judge(Order(SHORT)).verdict.passed
    assert worker.deaths == 0


def test_a_digest_needs_no_launch(worker: IsolatedWorker) -> None:
    digests = [worker.judge(Order(case, digest=True)).digest for case in (KILLED, KILLED, SHORT)]
    assert worker.deaths == 0
    assert len(digests[0]) == 16
    assert digests[0] == digests[1] != digests[2]


def test_a_failure_of_the_harness_is_not_blamed_on_the_target(worker: IsolatedWorker) -> None:
    with pytest.raises(FuzzAttnError, match=r"relation='speed' must be one of"):
        worker.judge(Order(SHORT, relation="speed"))


def test_a_target_that_dies_while_it_loads_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "dying.py"
    path.write_text("import os\nprint('so long', flush=True)\nos._exit(5)\n")
    dying = IsolatedWorker(Setup(f"{path}:attend"))
    with pytest.raises(TargetError, match=r"ended its process with status 5; it last printed:\nso long while it was"):
        dying.__enter__()


ORPHANING = """
import sys, threading, time
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup

with IsolatedWorker(Setup(sys.argv[1])) as worker:
    print(worker.process.pid, flush=True)
    worker.judge(Order(AttentionCase(sequences=(Sequence(1, 12),))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot end a process with its parent")
@pytest.mark.parametrize("forked", [True, False])
def test_a_hanging_worker_dies_with_its_parent(
    forked: bool, spec: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not forked:
        monkeypatch.delenv(VARIABLE)
    parent = subprocess.Popen([sys.executable, "-c", ORPHANING, spec("hangs")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until_gone(group)


def wait_until_gone(group: int) -> None:
    limit = time.monotonic() + A_HANG
    while time.monotonic() < limit:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process group {group} survives its parent")
