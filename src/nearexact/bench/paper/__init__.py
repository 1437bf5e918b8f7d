"""The paper's experiments, as named presets: presets.py lists them, each has a module of its own."""
