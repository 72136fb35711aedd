"""Targets that break the process that runs them. Each is right until it does harm, in cases of more than 8 keys."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[2] / "sample_targets"))

from torch_attention import unified_attention  # type: ignore[import-not-found] # in the folder above

from fuzz_attn.targets import Domain, Target

_STATE: list[int] = []


def _harmful(name: str, harm: Callable[..., None], *, always: bool = False) -> Target:
    """Return the right attention, followed by harm."""

    @wraps(unified_attention)
    def attend(**given: Any) -> None:
        unified_attention(**given)
        if always or (int(given["seqused_k"].max()) > 8 and int(given["cu_seqlens_q"][-1])):
            harm(**given)

    return Target(name, attend, Domain(dtypes=("float32",), head_sizes=(1, 16), features=frozenset()))


def _segfault(**_: Any) -> None:
    ctypes.string_at(8)


def _leave(**_: Any) -> None:
    os._exit(0)


def _interrupt(**_: Any) -> None:
    raise KeyboardInterrupt


def _hang(**_: Any) -> None:
    time.sleep(3600)


def _exhaust_memory(**_: Any) -> None:
    hoard = []
    while True:
        hoard.append(torch.ones(2**24))  # 64 MiB


def _patch_torch(**_: Any) -> None:
    torch.Tensor.untyped_storage = None  # type: ignore[method-assign,assignment] # the harness calls it


def _lower_recursion_limit(**_: Any) -> None:
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 10)


def _keep_state(out: torch.Tensor, **_: Any) -> None:
    """Write a wrong row once three cases have been seen in this process."""
    _STATE.append(1)
    if len(_STATE) > 3:
        out[0, 0] = 77.0


def _kill_itself_later(**_: Any) -> None:
    """Let the system kill this process once three cases have been seen in it, as it does if memory is short."""
    _STATE.append(1)
    if len(_STATE) > 3:
        os.kill(os.getpid(), signal.SIGKILL)


def _fail_sometimes(out: torch.Tensor, **_: Any) -> None:
    """Write a wrong row in every 37th call of a run, in whichever process: no case fails twice in a row."""
    with Path("calls").open("ab") as file:
        file.write(b".")
        if file.tell() % 37 == 5:
            out[0, 0] = 77.0


def _be_wrong(out: torch.Tensor, **_: Any) -> None:
    out[0, 0] = 77.0


def _be_slow(**_: Any) -> None:
    time.sleep(0.05)


def _be_slow_and_wrong(out: torch.Tensor, **_: Any) -> None:
    time.sleep(0.05)
    out[0, 0] = 77.0


def _be_wrong_later(out: torch.Tensor, **_: Any) -> None:
    """Write a wrong row once the drill has made a file."""
    time.sleep(0.05)
    if Path(os.environ["FUZZ_ATTN_DRILL_WRONG"]).exists():
        out[0, 0] = 77.0


def _raise_on_one_of_150_lines(seqused_k: torch.Tensor, cu_seqlens_q: torch.Tensor, **_: Any) -> None:
    """Raise an exception on a line that the case chooses: each line is a bug of its own."""
    line = 3 * (int(seqused_k.max()) % 50) + int(cu_seqlens_q[-1]) % 3
    source = "\n" * line + "raise ValueError('one of many bugs')"
    exec(compile(source, str(Path(__file__).with_name("many_lines.py")), "exec"))


def _raise_on_one_of_4_lines(seqused_k: torch.Tensor, **_: Any) -> None:
    source = "\n" * (int(seqused_k.max()) % 4) + "raise ValueError('one of four bugs')"
    exec(compile(source, str(Path(__file__).with_name("four_lines.py")), "exec"))


def _leave_a_process(**_: Any) -> None:
    """Start a process that no longer belongs to this one, nor to its group and session."""
    time.sleep(0.02)
    if os.fork():
        return
    os.setsid()
    if not os.fork():
        os.execlp(sys.executable, sys.executable, "-c", "import time; time.sleep(3600)")
    os._exit(0)


segfaults = _harmful("segfaults", _segfault)
kills_itself_later = _harmful("kills_itself_later", _kill_itself_later)
leaves = _harmful("leaves", _leave)
interrupts = _harmful("interrupts", _interrupt)
hangs_always = _harmful("hangs_always", _hang, always=True)
exhausts_memory = _harmful("exhausts_memory", _exhaust_memory)
patches_torch = _harmful("patches_torch", _patch_torch)
lowers_recursion_limit = _harmful("lowers_recursion_limit", _lower_recursion_limit)
keeps_state = _harmful("keeps_state", _keep_state)
fails_sometimes = _harmful("fails_sometimes", _fail_sometimes)
wrong = _harmful("wrong", _be_wrong)
slow = _harmful("slow", _be_slow, always=True)
slow_and_wrong = _harmful("slow_and_wrong", _be_slow_and_wrong)
wrong_later = _harmful("wrong_later", _be_wrong_later, always=True)
four_bugs = _harmful("four_bugs", _raise_on_one_of_4_lines)
many_bugs = _harmful("many_bugs", _raise_on_one_of_150_lines)
leaves_processes = _harmful("leaves_processes", _leave_a_process, always=True)
