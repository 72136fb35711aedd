"""A run: ``fuzz_run`` starts its shards and passes their events on, ``shard`` is the process of one.

``run_plan`` holds the plans of both, ``cores`` the number of workers, ``machine`` the event that begins a run.
``merging`` unites the results of several runs, whose logs ``part_logs`` finds.
"""
