"""Reports on a terminal, as text and as pictures.

``failure`` holds one failing case, ``bias_values`` its slopes and sinks, ``summary`` a run and its progress,
``coverage_gaps`` the mask outcomes that a run did not exercise, ``picture`` an SVG of a report, and ``plain_text`` what
all of them print with.
"""
