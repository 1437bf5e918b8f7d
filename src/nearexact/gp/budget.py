"""What is left of time and memory, and what the next step may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Cost:
    """Seconds that something took last, and what it may take with more points: they grow with M² at most."""

    m: int = 1
    seconds: float = 0.0

    def measured(self, m: int, seconds: float) -> None:
        """It has just taken so long with m points."""
        self.m, self.seconds = m, seconds

    def predicted(self, m: int) -> float:
        """What it may take with m points; 0 if it was never measured."""
        return self.seconds * max(m / self.m, 1.0) ** 2

    @property
    def known(self) -> bool:
        """Whether it was measured."""
        return self.seconds > 0.0
