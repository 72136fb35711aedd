"""The command line.

``main`` holds the command group, and one module holds each command: ``run``, ``replay``, ``bind``, ``mark``, ``show``,
``export``, ``coverage``, ``audit``, ``ledger`` and ``targets``. ``options`` holds what they share. ``campaign`` fuzzes
the targets of ``run`` with the engine, prints the results and saves them. ``guard`` gives every end its exit status.
"""

import os
import sys

try:
    os.getcwd()
except OSError as error:  # here, because a library that the commands import would raise it
    sys.stderr.write(f"fuzz-attn: the current folder: {error.strerror}\n")
    sys.exit(2)
