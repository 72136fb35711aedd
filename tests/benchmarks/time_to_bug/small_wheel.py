"""Small wheel: `small_wheel.py WHEEL FOLDER` writes a wheel of the Python files of a wheel.

It is for a machine without network. A launcher needs nothing else, and the rest of such a wheel is hundreds of
megabytes.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def small_wheel(wheel: Path, folder: Path) -> Path:
    """Return a new wheel of the same package and version in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    small = folder / ("-".join(wheel.name.split("-")[:2]) + "-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as written:
        for name in whole.namelist():
            if name.endswith(".py"):
                written.writestr(name, whole.read(name))
    return small


if __name__ == "__main__":
    print(small_wheel(Path(sys.argv[1]), Path(sys.argv[2])))
