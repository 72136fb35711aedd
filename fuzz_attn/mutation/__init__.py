"""The audit: which bugs would a campaign find? Mutants of kernels are judged on the cases of a default campaign.

- A mutant is a seeded bug, that is an edit of our kernels (``seeded_bugs`` reads the files of ``seeded/tables/``,
  ``edited_kernels`` imports edited copies), or a change of any Triton kernel's IR (``ir_operators``).
- ``audit`` runs a whole audit. It spreads the mutants over worker processes and replaces those that die;
  ``audit_worker`` is what such a worker does.
- ``batch_runner`` judges a batch of mutants case by case, so that each case is drawn, materialised and referenced once
  for all. Fixed tolerances judge the same outputs.
- ``audit_results`` are the mutants, outcomes and scores, and the known survivors with their reasons,
  ``audit_report`` the text.
"""
