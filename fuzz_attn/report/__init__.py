"""Reports on a terminal, as text, as pictures and as pages.

``failure`` holds one failing case, ``bias_values`` its slopes and sinks, ``summary`` a run and its progress,
``refusals`` what the target refused in it, ``coverage_gaps`` the mask outcomes that it did not exercise, ``picture`` an
SVG of a report, and ``plain_text`` what all of them print with. ``page`` makes pages of HTML from the logs of runs.
"""
