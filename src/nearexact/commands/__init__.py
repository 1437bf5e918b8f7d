"""The parts of the command `nearexact`, each with its options and what they do."""
