"""The audit: which bugs would a campaign find? Mutants of kernels are judged on the cases of a default campaign.

- ``mutant`` is the data of one mutant: a seeded bug, that is an edit of our kernels (package ``seeded``), or a change
  of any Triton kernel's IR (package ``ir``).
- ``audit`` runs a whole audit. ``audit_pool`` spreads the mutants over worker processes and replaces those that die;
  ``audit_worker`` is what such a worker does, with the messages of ``messages``.
- ``batch_runner`` judges a batch of mutants case by case (``mutant_run``), so that each case of the ``case_stream`` is
  drawn, materialised and referenced once for all (``prepared_case``). ``position`` records which mutant a worker died
  of. ``fixed_tolerances`` judge the same outputs.
- ``results`` are the outcomes and scores, ``survivors`` the known survivors with their reasons, ``report`` the text.
"""
