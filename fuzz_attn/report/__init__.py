"""Reports on a terminal, as text, as pictures and as pages.

``failure`` holds one failing case and what the kernel did wrong in it, ``summary`` a run and its progress on a
terminal, ``mask_gaps`` the mask outcomes that it did not exercise. ``run_documents`` are for other programs.
``printing`` is what all of them print with. ``page`` makes pages of HTML from the logs of runs.
"""
