"""Put each fault of this folder's tables into a copy of the harness, and check that its named test fails there.

``make faults`` runs it. A fault is a table of a TOML file: the text of one place, another text that makes the harness
wrong there, the test that must fail, and why it matters. No general tool fits: mutmut and cosmic-ray generate mutants
and run a whole suite on each, while these are chosen faults, each with the one test that is meant to notice it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(__file__).parent
COPIED: Final = ("fuzz_attn", "kernels", "strategies", "tests", "pyproject.toml")
"""What a test of the harness needs of a checkout."""
SECONDS: Final = 900.0
"""The most that one test may take; a fault must fail its test, not hang it."""

Result: TypeAlias = Literal["found", "survived", "does not apply", "no verdict"]
"""``no verdict``: pytest failed otherwise than by a failing test, or took too long."""


@dataclass(frozen=True)
class Fault:
    """``old`` occurs once in ``file`` and becomes ``new``; then ``test``, a node of pytest, must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str
    matters: str

    def text_in(self, root: Path) -> str:
        """Return the file's text with the fault; raises ValueError unless the old text occurs exactly once."""
        text = (root / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: old text occurs {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


def load_faults(folder: Path = FOLDER) -> list[Fault]:
    """Return the faults of a folder's TOML files, by file and then in the file's order."""
    tables = (tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml")))
    return [Fault(name, **fields) for table in tables for name, fields in table.items()]


def copy_of_checkout(folder: Path) -> Path:
    """Return the folder with a copy of the package and its tests, without compiled files."""
    for name in COPIED:
        source, ignored = ROOT / name, shutil.ignore_patterns("__pycache__")
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source, folder / name)
    return folder


def run_tests(copy: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Return the finished pytest process of some tests in a copy, whose package they import."""
    environment = os.environ | {"PYTHONPATH": str(copy), "FUZZ_ATTN_CACHE": str(copy.parent / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", *tests]
    return subprocess.run(
        command, cwd=copy, env=environment, check=False, capture_output=True, text=True, timeout=SECONDS
    )


def left_to_the_night(copy: Path, tests: Sequence[str]) -> list[str]:
    """Return those of some tests that `make test` leaves out, as they are slow."""
    files = sorted({test.partition("::")[0] for test in tests})
    listed = run_tests(copy, ["--collect-only", *files]).stdout.splitlines()
    quick = {name for line in listed for name in (line, line.partition("[")[0], line.partition("::")[0])}
    return [test for test in tests if test not in quick]


def result_of(fault: Fault, healthy: Path, scratch: Path) -> Result:
    """Return what became of one fault, in a copy of its own of the healthy copy."""
    try:
        text = fault.text_in(healthy)
    except (OSError, ValueError):
        return "does not apply"
    copy = scratch / fault.name
    # Compiled files come along, so that each process compiles only the file with the fault.
    shutil.copytree(healthy, copy, symlinks=True)
    path = copy / fault.file
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
    path.write_text(text, encoding="utf-8")
    try:
        code = run_tests(copy, [fault.test]).returncode
    except subprocess.TimeoutExpired:
        return "no verdict"
    finally:
        shutil.rmtree(copy)
    return "found" if code == 1 else "survived" if code == 0 else "no verdict"


def check(faults: Sequence[Fault], workers: int) -> int:
    """Print a line for each fault and a summary; return 0 if every fault was found by its test."""
    with tempfile.TemporaryDirectory(prefix="fuzz-attn-faults-") as scratch:
        healthy = copy_of_checkout(Path(scratch) / "healthy")
        tests = sorted({fault.test for fault in faults})
        print(f"Running the {len(tests)} named tests without a fault", flush=True)
        process = run_tests(healthy, tests)
        if process.returncode:
            print(process.stdout[-4000:], process.stderr[-2000:], sep="\n")
            print("The named tests must pass before faults are put in")
            return 2
        slow = left_to_the_night(healthy, tests)
        print(f"{len(slow)} of them are slow: `make test` leaves them to the night", *slow, sep="\n    ", flush=True)
        width = max(len(fault.name) for fault in faults)
        with ThreadPoolExecutor(workers) as pool:
            results = pool.map(lambda fault: result_of(fault, healthy, Path(scratch)), faults)
            found = 0
            for fault, result in zip(faults, results, strict=True):
                found += result == "found"
                print(f"{fault.name:{width}}  {result:14}  {fault.test.removeprefix('tests/')}", flush=True)
    print(f"{found} of {len(faults)} faults found by their tests")
    return 0 if found == len(faults) else 1


def main() -> int:
    """Check the faults that the command line names, by default all."""
    parser = argparse.ArgumentParser(description="Put faults into copies of the harness; each must fail its test.")
    parser.add_argument("only", nargs="*", metavar="TEXT", help="only faults whose name contains TEXT")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="tests to run at a time")
    options = parser.parse_args()
    faults = [fault for fault in load_faults() if not options.only or any(text in fault.name for text in options.only)]
    if not faults:
        parser.error(f"no fault's name contains {' or '.join(options.only)}")
    return check(faults, options.workers)


if __name__ == "__main__":
    sys.exit(main())
