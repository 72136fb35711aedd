"""The folder that a run writes to: ``reports/runs/<start>-<process>``."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path


def new_run_folder(out: str | Path | None) -> Path:
    """Return the folder of a run that starts now, below the output directory or, for None, below reports/."""
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path(out or "reports").resolve() / "runs" / f"{started}-{os.getpid()}"


def folder_name(text: str) -> str:
    """Return the text as a name for a folder, without slashes, colons and blanks."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")
