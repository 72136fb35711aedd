"""The command line.

``main`` holds the command group. One module holds the commands that belong together: ``run`` with ``merge``,
``failure_files``, ``report``, ``targets``, ``audit`` and ``ledger``. ``options`` holds what they share. The results of
``run`` may also be saved at an address (``remote_output``). ``guard`` gives every end its exit status.
"""

import os
import sys

try:
    os.getcwd()
except OSError as error:  # here, because a library that the commands import would raise it
    sys.stderr.write(f"fuzz-attn: the current folder: {error.strerror}\n")
    sys.exit(2)
