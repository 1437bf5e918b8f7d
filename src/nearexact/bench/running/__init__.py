"""Making runs: what to run, one process for each, its clock and its recorder, and what the terminal shows meanwhile."""
