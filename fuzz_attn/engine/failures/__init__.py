"""What becomes of a failing case.

``life`` saves, confirms and shrinks it, ``confirmation`` runs it again, ``reduction`` makes it simpler and finds which
traits it needs, ``triage`` decides whether two failures are one bug, and ``saved`` plays saved counterexamples. On a
GPU, ``confirmation`` checks what was shrunk in the simulator. ``other_shards`` leaves a failure to the shard that met
it first.
"""
