"""Reports on a terminal, as text, as pictures and as pages.

``failure`` holds one failing case, ``explanation_text`` what the kernel did wrong in it, ``summary`` a run and its
progress, which ``terminal`` shows, ``mask_gaps`` the mask outcomes that it did not exercise. ``run_documents`` are for
other programs. ``printing`` is what all of them print with. ``page`` makes pages of HTML from the logs of runs.
"""
