"""The results of a run as one JSON document, for programs that read ``fuzz-attn run --json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.engine.listeners.statistics import Statistics

SCHEMA: Final = 1
"""The version of the document."""


def document(reports: Sequence[RunReport], exit_status: int) -> str:
    """Return the reports of all targets as JSON text."""
    content = {
        "schema": SCHEMA,
        "ok": exit_status == 0,
        "exit_status": exit_status,
        "targets": [_target(report) for report in reports],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode()


def numbers(statistics: Statistics) -> dict[str, Any]:
    """Return statistics without the masks, which are in ``coverage.json``."""
    content: dict[str, Any] = msgspec.to_builtins(statistics)
    del content["masks"], content["shrinking_now"]
    return content


def _target(report: RunReport) -> dict[str, Any]:
    return {
        "target": report.target,
        "ok": report.ok,
        "reason": report.reason,
        "lost": report.lost,
        "failures": [_failure(found) for found in report.failures],
        "refusals": msgspec.to_builtins(report.refusals),
        "notes": report.notes,
        "errors": report.errors,
        "stopped_by": report.stopped_by,
        "statistics": numbers(report.statistics),
    }


def _failure(found: FoundFailure) -> dict[str, Any]:
    return {"kind": found.kind, "message": found.message, **msgspec.to_builtins(found)}
