"""The start of ``fuzz-attn``: imports the commands, which may fail where memory is short or the installation is broken.

Python would print a traceback and exit with 1, which says that a case fails.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130
WRONG = 2
ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def start() -> None:
    """Run the command line; exits with one line on standard error if its modules cannot be imported.

    Once the exit status is known, a signal no longer changes it: a second interrupt may come while Python ends.
    """
    try:
        from fuzz_attn.cli.main import main  # noqa: PLC0415 - what this module is for
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - an import runs any code
        why = " ".join(f"{type(error).__name__}: {error}".split())
        os.write(2, f"fuzz-attn: cannot be started: {why}\n".encode(errors="replace")[:1000])
        sys.exit(WRONG)
    try:
        main()
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
