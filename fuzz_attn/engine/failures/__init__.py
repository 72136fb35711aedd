"""What becomes of a failing case.

``life`` saves, confirms and shrinks it, ``confirmation`` runs it again, ``simplification`` makes it simpler,
``trigger`` finds which traits it needs, ``triage`` decides whether two failures are one bug, and ``saved`` plays saved
counterexamples.
"""
