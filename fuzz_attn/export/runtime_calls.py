"""The functions that a script of several calls contains too, copied from this source."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fuzz_attn.export.runtime import Memory


def in_memory_of(before: Memory, memory: Memory) -> Memory:
    """Return the memory of a call, moved to that of the call before where that has the same layout."""
    for name, held in memory.held.items():
        old, block = before.held.get(name), before.blocks.get(name)
        if old is None or block is None or before.starts[name] != memory.starts[name]:
            continue
        if (old.shape, old.stride(), block.shape) == (held.shape, held.stride(), memory.blocks[name].shape):
            if not torch.equal(old, held):
                old.copy_(held)
            memory.blocks[name], memory.held[name] = block, old
    return memory


def same_tensors(before: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, with the tensors of the call before where they are like its own."""
    return {name: before[name] if _alike(before.get(name), value) else value for name, value in given.items()}


def _alike(old: object, new: object) -> bool:
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    same = old.data_ptr() == new.data_ptr() and old.dtype == new.dtype
    return same and (old.shape, old.stride()) == (new.shape, new.stride())


def lacking(given: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the arguments of a call with None in the place of a tensor, counted from the last one."""
    tensors = [name for name, value in given.items() if isinstance(value, torch.Tensor) and value.numel()]
    return {**given, tensors[-1 - (number - 1) % len(tensors)]: None}


class Meanwhile:
    """A function in the middle of which something runs in a second thread: at the so manieth line of its own code."""

    def __init__(self, line: int, function: Callable[..., Any], work: Callable[[], object]) -> None:
        self.line, self.function = line, function
        self.thread = threading.Thread(target=work)
        self.started = False

    def __call__(self, **arguments: Any) -> Any:
        """Return what the function returns, when both have ended."""
        sys.settrace(self.trace)
        try:
            return self.function(**arguments)
        finally:
            sys.settrace(None)
            self.start()
            self.thread.join()

    def trace(self, frame: Any, event: str, value: Any) -> Any:
        """Count the lines of the function's own code, but not those that a launch of Triton runs."""
        if self.started or (event == "call" and (not is_own(frame.f_code.co_filename) or is_in_launch(frame))):
            return None
        self.line -= event == "line"
        if self.line > 0:
            return self.trace
        sys.settrace(None)
        self.start()
        return None

    def start(self) -> None:
        """Run the thread, and wait until it has ended or waits for this one."""
        if not self.started:
            self.started = True
            self.thread.start()
            self.thread.join(5.0)


def is_in_launch(frame: Any) -> bool:
    """Return whether Triton's code has called the code of a frame."""
    triton = str(Path(str(sys.modules["triton"].__file__)).parent) if "triton" in sys.modules else ""
    while frame is not None and not (triton and frame.f_code.co_filename.startswith(triton)):
        frame = frame.f_back
    return frame is not None


def is_own(file: str) -> bool:
    """Return whether a file belongs to the kernel's project: not to this script, Python, torch, Triton or numpy."""
    modules = [sys.modules.get(name) for name in ("torch", "triton", "numpy")]
    libraries = [str(Path(str(each.__file__)).parent) for each in modules if each is not None]
    standard = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    python = file.startswith(tuple(f"{folder}/" for folder in standard)) and "-packages/" not in file
    return file != __file__ and not file.startswith("<") and not python and not file.startswith(tuple(libraries))
