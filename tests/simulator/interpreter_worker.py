"""A second process that runs kernels in Triton's interpreter, for comparison.

Whether `@triton.jit` compiles or interprets is decided once in a process, so the two cannot live in one.
"""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import torch

ROOT = Path(__file__).parents[2]


class InterpreterWorker:
    """Runs kernels of a file, or a function by its name, in another process; use it as a context."""

    def __enter__(self) -> InterpreterWorker:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = dict(
            os.environ, TRITON_INTERPRET="1", OMP_NUM_THREADS="1", PYTHONPATH=path, PYTHONWARNINGS="ignore"
        )
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def launch(
        self, path: str, kernel: str, grid: tuple[int, ...], *arguments: Any, **keywords: Any
    ) -> tuple[list[Any], float]:
        """Return the arguments after a launch of `kernel` in the file `path`, and its CPU time in seconds."""
        return self._ask(("launch", path, kernel, grid, arguments, keywords))

    def call(self, name: str, **keywords: Any) -> tuple[list[Any], float]:
        """Return the keyword arguments' values after a call of a function, and its CPU time in seconds.

        The function is named `module:function` or `path.py:function`.
        """
        return self._ask(("call", name, "", (), (), keywords))

    def _ask(self, request: tuple[Any, ...]) -> tuple[list[Any], float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _send(request, self._process.stdin)
        answer: tuple[list[Any], float] | BaseException = _receive(self._process.stdout)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _send(message: object, sink: Any) -> None:
    buffer = io.BytesIO()
    torch.save(message, buffer)
    pickle.dump(buffer.getvalue(), sink)
    sink.flush()


def _receive(source: Any) -> Any:
    return torch.load(io.BytesIO(pickle.load(source)), weights_only=False)


def _load(path: str, known: dict[str, ModuleType]) -> ModuleType:
    if path not in known:
        spec = importlib.util.spec_from_file_location(f"interpreted_{len(known)}", path)
        assert spec is not None
        assert spec.loader is not None
        module = known[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return known[path]


def _answer(request: tuple[Any, ...], known: dict[str, ModuleType]) -> tuple[list[Any], float]:
    kind, name, kernel, grid, arguments, keywords = request
    if kind == "launch":
        function = getattr(_load(name, known), kernel)[grid]
    else:
        module, _, attribute = name.partition(":")
        source = _load(module, known) if module.endswith(".py") else importlib.import_module(module)
        function = getattr(source, attribute)
    start = time.process_time()
    function(*arguments, **keywords)
    return [*arguments, *keywords.values()], time.process_time() - start


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    from fuzz_attn.backends.interpreter import InterpreterBackend  # noqa: PLC0415 - only the worker is its process

    backend = InterpreterBackend()
    backend.prepare()
    backend.preflight()
    known: dict[str, ModuleType] = {}
    with backend.running():
        while True:
            try:
                request = _receive(source)
            except EOFError:
                return
            try:
                answer: Any = _answer(request, known)
            except Exception as error:  # noqa: BLE001 - the other process raises any error
                answer = RuntimeError(repr(error))
            _send(answer, sink)


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, output)
