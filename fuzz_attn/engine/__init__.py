"""The engine: campaigns, the life of a failure, replay, and the judges of cases.

- ``campaign`` runs one shard: ``schedule`` plays rounds of cases, and ``failures`` confirms and shrinks each failure.
  It emits ``events``. The target's operation draws cases and knows refusals (:mod:`fuzz_attn.operations`).
- ``fuzz_run`` starts the shards of a run and passes their events on, ``shard`` is the process of one. ``run_plan``
  holds the plans of both, the number of workers, and the event that begins a run. ``shards`` are those of this machine,
  ``ray_shards`` those of a cluster. ``run_folder`` is the folder that a run writes to, with the case that is running.
  ``listeners`` count, keep and log events. ``merging`` finds and unites the results of several runs.
- On a GPU, the compile stage compiles the kernels of the next rounds while shards judge cases. ``rounds`` says in files
  which rounds are ready. ``rehearsal`` finds the kernels of a round, ``compiler`` is the process that compiles them.
- ``replay`` runs saved counterexamples again, and asks what a kernel does wrong in one.
- ``isolated_worker`` judges cases in a child process (:mod:`fuzz_attn.workers`), by ``orders``. ``case_judge`` is what
  that process does. All processes are forks of ``preloaded``.
"""
