"""Results of runs: ``campaign`` runs targets, prints and saves their results; ``merge`` does so for several runs."""
