"""The report of runs as HTML pages that need no network and no scripts.

``run_log`` reads the logs of a run, ``page`` makes its page, ``trend`` the page of several runs, and ``server`` serves
the page of a run that goes on. ``tables`` and ``charts`` hold what both pages are made of, ``sections`` the content of
a run's page, ``failures`` its failures and ``sources`` the kernels' lines with their masks.
"""
