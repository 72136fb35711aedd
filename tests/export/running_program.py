"""Runs every script of a folder without fuzz_attn, and prints what each printed and its exit status as JSON."""

import contextlib
import io
import json
import runpy
import sys
import traceback
from pathlib import Path


class Blocker:
    """Refuses to import fuzz_attn."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ImportError for any module of fuzz_attn."""
        if name.partition(".")[0] == "fuzz_attn":
            raise ImportError(f"{name} must not be imported")


def run(script: Path, arguments: list[str]) -> tuple[int, str]:
    """Return the exit status of a script, -1 if it raised, and what it printed."""
    out = io.StringIO()
    sys.argv = [str(script), *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as left:
            return int(left.code or 0), out.getvalue()
        except Exception:  # noqa: BLE001 - whatever a script raises is its failure
            traceback.print_exc()
    return -1, out.getvalue()


if __name__ == "__main__":
    for name in [name for name in sys.modules if name.partition(".")[0] == "fuzz_attn"]:
        del sys.modules[name]  # a fork of the tests' server has imported it
    sys.meta_path.insert(0, Blocker())
    folder, *options = sys.argv[1:]
    found = {path.stem: run(path, options) for path in sorted(Path(folder).glob("*.py"))}
    print(json.dumps(found))
