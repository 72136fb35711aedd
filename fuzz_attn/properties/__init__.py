"""Properties: what must hold for every case on every target. Each gives a verdict on one experiment.

- ``experiment`` launches a target on a case and keeps the launch for all properties. It decides whether an exception of
  the target is a failure or refuses the case.
- ``launch_properties`` look at the first launch only, the value range among them.
- ``few_values`` launches again where a long row looks as if a key were lost.
- A metamorphic relation compares it with a second launch on changed inputs. ``relations`` is the registry: each
  relation's name, its claim and the cases it holds for, without importing torch. The function of the same name in
  ``relation_launches`` makes the second launch.
- ``comparisons`` turns two launches into a verdict.
- ``check`` runs everything on one case, and ``named_causes`` what tells more of a failure.
"""
