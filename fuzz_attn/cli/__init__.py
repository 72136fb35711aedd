"""The command line.

``main`` holds the command group, and one module holds each command: ``run``, ``replay``, ``bind``, ``mark``, ``show``,
``export``, ``coverage``, ``audit``, ``ledger`` and ``targets``. ``options`` holds what they share. ``campaign`` fuzzes
the targets of ``run`` with the engine, prints the results and saves them.
"""
