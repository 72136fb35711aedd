"""The functions that every exported script contains, copied from this source. They need torch only."""

from __future__ import annotations

import argparse
import base64
import functools
import importlib.util
import json
import mmap
import os
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORST = 8  # wrong elements that are printed


class Memory:
    """The memory of one call: every byte, with the poison between and around the tensors.

    ``blocks`` gives for each name: its key in ``data``, how many bytes of addresses without memory lie before the data,
    the first byte and the end of the bytes that tensors use, how many pieces of the memory exist, and the bytes from
    one piece to the next, 0 if there is one. With ``tight`` there is nothing else, so that a memory checker sees each
    access that leaves its tensor.
    """

    def __init__(
        self, blocks: dict[str, tuple[str, int, int, int, int, int]], data: dict[str, bytes], device: str, tight: bool
    ) -> None:
        self.blocks, self.starts, self.held = {}, {}, {}
        for name, (key, void, first, last, pieces, stride) in blocks.items():
            apart = (pieces - 1) * stride
            content = bytes_tensor(data[key]).view(pieces, len(data[key]) // pieces)
            used = (last - 1) % stride + 1 if stride else last
            start, end = (first, used) if tight else (0, void + content.shape[1])
            near = max(start, void)
            content = content[:, near - void : end - void]
            block = self._allocated(end + apart - start, device, far=near > start or apart > 0)
            held = block.as_strided(content.shape, (stride or content.shape[1], 1), near - start)
            held.copy_(content)
            self.blocks[name], self.starts[name], self.held[name] = block, start, held
        self.before = {name: held.clone() for name, held in self.held.items()}

    @staticmethod
    def _allocated(size: int, device: str, *, far: bool) -> torch.Tensor:
        """Return memory; on a CPU, bytes that are never touched take none."""
        if far and device == "cpu":
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
            return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)
        return torch.zeros(size, dtype=torch.uint8, device=device)

    def view(
        self, name: str, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        """Return a tensor over a block; strides and offset are in elements of the whole block."""
        start = self.starts[name] // dtype.itemsize
        return self.blocks[name].view(dtype).as_strided(shape, strides, offset - start)

    def changed(self, name: str) -> bool:
        """Return whether a block has other bytes than before the call."""
        return not torch.equal(self.held[name], self.before[name])


def bytes_tensor(data: bytes) -> torch.Tensor:
    """Return bytes as a tensor of its own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def unpacked(text: str) -> bytes:
    """Return the bytes of an entry of DATA."""
    return zlib.decompress(base64.b85decode(text))


def from_safetensors(path: Path) -> dict[str, bytes]:
    """Return the bytes of each tensor of a safetensors file."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    return {
        name: content[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]]
        for name, entry in header.items()
    }


@functools.cache
def function_of_file(path: str, name: str) -> Any:
    """Return a function of a Python file, or of the file of the same name beside this script; it is loaded once."""
    file = Path(path) if Path(path).exists() else Path(__file__).with_name(Path(path).name)
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    sys.path.append(str(file.parent))
    specification.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of each element as an integer, on the CPU."""
    return tensor.cpu().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def numbers(data: bytes, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the float64 tensor of these bytes."""
    return bytes_tensor(data).view(torch.float64).view(shape)


def wrong_elements(
    output: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor, poison: int, axes: list[str]
) -> bool:
    """Print the worst elements and return whether there is a wrong one.

    A bound of infinity allows any element that was written, also NaN; a bound of NaN is that of an element that the
    target must leave as it was.
    """
    actual = output.cpu()
    width = 8 * actual.dtype.itemsize
    unwritten = bits(actual) == (poison - (1 << width) if width > 8 and poison >> (width - 1) else poison)
    # Equal infinities, such as the log-sum-exp of a row without keys, differ by NaN.
    error = (actual.double() - expected).abs().masked_fill(actual.double() == expected, 0.0)
    wrong = (~(error <= bound) & bound.isfinite()) | (unwritten & ~bound.isnan())
    if not wrong.any():
        return False
    print(f"{int(wrong.sum())} of {wrong.numel()} elements wrong, {int((unwritten & wrong).sum())} never written")
    print("".join(f"{axis:>7}" for axis in axes) + f"{'actual':>16}{'expected':>16}{'bound':>12}")
    order = (error / bound).nan_to_num(torch.inf)[wrong].sort(descending=True, stable=True).indices[:WORST]
    for place in map(tuple, wrong.nonzero()[order].tolist()):
        three = f"{float(actual[place]):16.9g}{float(expected[place]):16.9g}{float(bound[place]):12.3g}"
        print("".join(f"{index:7}" for index in place) + three)
    return True


def written_outside(
    memory: Memory, name: str, output: torch.Tensor, region: tuple[Any, ...], live: torch.Tensor
) -> bool:
    """Print and return whether bytes of the output's memory were written that belong to no row to write."""
    expected = memory.before[name].clone()
    copy = expected.view(output.dtype)
    strides = list(output.stride())
    if len(copy) > 1:
        strides[strides.index(max(strides))] = copy.stride(0)
    before = copy.as_strided(output.shape, strides, output.storage_offset()).view(bits(output).dtype)
    after = output.view(before.dtype)[region]
    before[region] = torch.where(live.to(after.device), after, before[region])
    outside = int((expected != memory.held[name]).sum())
    if outside:
        print(f"{outside} bytes of the output's memory that belong to no row were written")
    return outside > 0


def different_rows(
    first: torch.Tensor, second: torch.Tensor, tokens: list[int] | None, live: torch.Tensor, axes: list[str]
) -> bool:
    """Print and return whether rows of two outputs that must have the same bits differ where they are live."""
    before = bits(first)
    if tokens is not None and "token" in axes:
        before = before.index_select(axes.index("token"), torch.tensor(tokens, dtype=torch.int64))
    different = (before != bits(second)) & live.cpu()
    if axes[-1] == "column":
        different, axes = different.any(dim=-1), axes[:-1]
    if different.any():
        place = zip(axes, different.nonzero()[0].tolist(), strict=True)
        where = ", ".join(f"{axis} {index}" for axis, index in place)
        print(f"{int(different.sum())} ({', '.join(axes)}) rows have other bits, the first at {where}")
    return bool(different.any())


def imported(target: Callable[[], Any], needed: str) -> Any:
    """Return what a function imports; where that fails, say what is missing and end with status 2."""
    try:
        return target()
    except Exception as error:  # noqa: BLE001 - importing runs the target's code, which may raise anything
        print(f"cannot import {needed}: {type(error).__name__}: {error}", file=sys.stderr)
        print(
            "Install it for this Python, or put its folder on PYTHONPATH, or its file beside this script.",
            file=sys.stderr,
        )
        sys.exit(2)


def call(function: Callable[..., object], arguments: dict[str, Any], device: str) -> tuple[bool, object]:
    """Call the target; print and return whether it raised, and return its result."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then returns memory full of NaN
    result = None
    try:
        result = function(**arguments)
        if device != "cpu":
            torch.cuda.synchronize()
    except Exception:  # noqa: BLE001 - any exception of the target is a failure
        traceback.print_exc()
        return True, None
    finally:
        torch.use_deterministic_algorithms(False)
    return False, result


def returned(result: object, place: int, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[bool, torch.Tensor]:
    """Return whether the value of a result at a place is not the output that was promised, and the output."""
    values = tuple(result) if isinstance(result, tuple | list) and result else (result,)
    found = values[place] if place < len(values) else None
    if isinstance(found, torch.Tensor) and (tuple(found.shape), found.dtype) == (shape, dtype):
        return False, found
    what = f"{found.dtype} {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
    print(f"the call returned {what} where the output is {dtype} {list(shape)}")
    return True, torch.zeros(shape, dtype=dtype)


def options(description: str) -> argparse.Namespace:
    """Return the command line; on a CPU, Triton's interpreter runs the kernels."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--tight", action="store_true", help="no memory around the tensors, for a memory checker")
    chosen = parser.parse_args()
    if chosen.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    return chosen
