"""Exports each counterexample of a folder as a script beside it: ``exporting_program.py FOLDER``."""

import sys
from pathlib import Path

from fuzz_attn.counterexamples import counterexample
from fuzz_attn.export.script import exported

for path in sorted(Path(sys.argv[1]).glob("*.json")):
    found = counterexample.load(path)
    exported(found, found.target, found.binding).save(path.with_suffix(".py"))
