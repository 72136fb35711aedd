"""A run: ``fuzz_run`` starts its shards and passes their events on, ``shard`` is the process of one.

``run_plan`` holds the plans of both, the number of workers, and the event that begins a run. ``shards`` are those of
this machine, ``ray_shards`` those of a cluster. ``merging`` finds and unites the results of several runs.
"""
