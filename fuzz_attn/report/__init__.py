"""Reports: what a person reads of a failure and of a run."""
