"""Running methods: what to run, one process per run, its clock and its recorder, and what the terminal shows."""
