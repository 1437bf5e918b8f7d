"""From recorded points to statements: curves, checkpoints, targets, frontiers and verdicts.

Draws nothing, and imports no torch.
"""
