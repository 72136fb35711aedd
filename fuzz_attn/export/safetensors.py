"""The safetensors format: a header of JSON and the bytes of the tensors, which many programs read."""

from __future__ import annotations

import json
from pathlib import Path


def write(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write tensors by name: their type as the format calls it, shape and bytes."""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the bytes to 8
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))
