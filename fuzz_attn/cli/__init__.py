"""The command line.

``main`` holds the command group, and one module holds each command: ``run``, ``replay``, ``show``, ``coverage``,
``audit`` and ``targets``. ``options`` holds what they share. ``campaign`` runs the campaigns of ``run``, each through
the pytest call of ``pytest_call``, which collects the test file ``run_target.py``.
"""
