"""The paper's experiments, as named presets."""
