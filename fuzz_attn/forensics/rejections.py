"""Rejections: which line of a kernel Triton does not compile, and which of its constants the numbers there are.

For another exception, the line of the target that it comes from, and those that called it.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Final

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.forensics.explanation import Finding
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.simulator.site_values import short_name
from fuzz_attn.simulator.switches import Switches

_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?![\w.])")
MOST_NAMES: Final = 3
"""Constants that are named for one number."""
MOST_CALLERS: Final = 2
"""Lines that are named of those that called the one that raises."""


def rejection_findings(experiment: Experiment) -> tuple[Finding, ...]:
    """Return the line that Triton does not compile, or that raises, as one finding; nothing where neither is."""
    if not experiment.first.error:
        return ()
    return _not_compiled(experiment) or _raised(experiment.first)


def _not_compiled(experiment: Experiment) -> tuple[Finding, ...]:
    backend = experiment.backend
    if not isinstance(backend, SimulatorBackend):
        return ()
    switches = Switches()
    with backend.switched(switches):
        launch = experiment.launch_tensors(experiment.again())
    rejected = switches.rejected
    if rejected is None or not rejected.location or "LoweringError" not in launch.error:
        return ()
    place = Path(rejected.location).name
    reason = " ".join(rejected.reason.split())
    names = [
        f"{number} is {' or '.join(known[:MOST_NAMES])}"
        for number in dict.fromkeys(_NUMBER.findall(reason))
        if int(number) > 1 and (known := _names_of(int(number), switches.constants))
    ]
    where = f" ({', '.join(names)})" if names else ""
    words = f"{place}: Triton does not compile `{rejected.source}`: {reason}{where}"
    return (Finding("operation", words, in_host=True, cause=f"operation: {place} does not compile"),)


def _raised(launch: Launch) -> tuple[Finding, ...]:
    if not launch.error_site or not launch.error.startswith("raised "):
        return ()
    what = launch.error.removeprefix("raised ").partition(" at /")[0]
    callers = "".join(f", called by {_line(place)}" for place in launch.error_calls[:MOST_CALLERS])
    words = f"{_line(launch.error_site)} raises {what}{callers}"
    return (Finding("operation", words, in_host=True, cause=f"operation: {Path(launch.error_site).name} raises"),)


def _line(place: str) -> str:
    """Return a line of the target as its file, number and source."""
    file, _, line = place.rpartition(":")
    return f"{Path(file).name}:{line} `{linecache.getline(file, int(line)).strip()}`"


def _names_of(number: int, constants: dict[str, int]) -> list[str]:
    """Return the constants of a launch that are a number, those of sizes first."""
    names = [short_name(name) for name, value in constants.items() if value == number]
    return sorted(dict.fromkeys(names), key=lambda name: "PADDED" not in name)
