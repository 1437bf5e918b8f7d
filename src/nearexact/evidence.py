"""What speaks for a model's hyperparameters. Core and certificate both need it, the latter without torch."""

from __future__ import annotations

from dataclasses import dataclass

CERTIFIED_GAP = 0.01  # nats per point: what may be missing from the exact GP's likelihood
STANDARD_ERRORS = 2.0  # on either side of an estimate
FEWEST_AGREEING = 2  # starts of a search that must have ended near the best of all
MOST_LIKELY_MISSED = 0.02  # the chance, at most, that starts have missed a better optimum


def chance_of_missing(agreeing: int, starts: int) -> float:
    """How likely so many starts all miss a better optimum that each finds as often as they have found their best.

    Two that agree say much where they are two of two. Two of thirty show that there are many optima, and that the best
    of them is one of those that are hard to find: there may be others.
    """
    return (1.0 - agreeing / starts) ** starts if starts else 1.0


def are_enough(agreeing: int, starts: int) -> bool:
    """Whether so many that agree on the best show that hardly anything was missed."""
    return agreeing >= FEWEST_AGREEING and chance_of_missing(agreeing, starts) <= MOST_LIKELY_MISSED


def strongest(*supports: tuple[int, int]) -> tuple[int, int]:
    """Of several counts of those that agree, and of how many they are: where most agree, of the fewest."""
    return max(supports, key=lambda support: (support[0], -support[1]))


@dataclass(frozen=True)
class Evidence:
    """What a search for better hyperparameters θ has found: exact likelihoods of a subset, at θ and elsewhere."""

    rows: int  # of the subset
    starts: int  # of the search
    agreeing: int  # of these that have ended near the best of all
    gain_per_row: float | None  # nats by which the exact likelihood of these rows is higher elsewhere, if known
    likelihood: float  # the highest exact log marginal likelihood of these rows that any start has reached
    # How many parameters a likelihood must pay for before it is better than noise, where these are fewer than those of
    # the kernel: a simpler form of it explains more than chance would.
    price: float | None = None

    def in_words(self, n: int) -> str:
        """For a model of n rows."""
        share = "all rows" if self.rows >= n else f"{self.rows} of {n} rows"
        if self.starts == 0:
            return f"there was no time to follow any start to its end on {share}"
        searched = f"{self.agreeing} of {self.starts} starts agree on the exact likelihood of {share}"
        if self.gain_per_row is None:
            return f"{searched}, but there was no time to follow all of them to their end"
        return f"{searched}, at most {self.gain_per_row:.2g} nats per row higher elsewhere"
