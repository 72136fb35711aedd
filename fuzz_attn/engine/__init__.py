"""The engine: campaigns, the life of a failure, replay, and the judges of cases.

- ``campaign`` runs one shard: ``schedule`` plays rounds of cases, and ``failures`` confirms and shrinks each failure.
  It emits ``events``. The target's operation draws cases and knows refusals (:mod:`fuzz_attn.operations`).
- ``run`` holds a run of several shards, and ``run_folder`` the folder that it writes to, with the case that is running.
  ``listeners`` count, keep and log events.
- ``replay`` runs saved counterexamples again, and asks what a kernel does wrong in one.
- ``isolated_worker`` judges cases in a child process (:mod:`fuzz_attn.workers`), by ``orders``. ``case_judge`` is what
  that process does, and ``closer_look`` says more about a failure that it found. All processes are forks of
  ``run.preloaded``.
"""
