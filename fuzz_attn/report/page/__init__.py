"""The report of runs as HTML pages that need no network and no scripts.

``run_log`` reads the logs of a run, ``run_page`` makes its page, ``trend`` the page of several runs, and
``page_server`` serves the page of a run that goes on. ``sections`` holds the content of a run's page and its failures,
``charts`` the figures, and ``sources`` the kernels' lines with their masks.
"""
