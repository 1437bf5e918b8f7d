"""Which methods belong together, and what their `elbo` is: a bound, an estimate, or another model's likelihood."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

SPARSE = "sgpr"  # names that start with this are SGPR with growing M
REFERENCE = "sgpr"  # the method whose stages are the checkpoints
BASELINES = ("linear", "mean")  # no approximations of a GP: their likelihoods are those of other models
ESTIMATES = ("itergp", "gpr-iterative", "fitc")  # what they report as `elbo` may be above the exact likelihood
OWN = "nearexact"  # the estimator itself: a sparse GP with growing M, or the exact one
ORDER = (  # of rows in tables
    OWN, "itergp", "sgpr", "sgpr-paper", "sgpr-tight", "gpr", "gpr-iterative", "svgp", "fitc", "linear", "mean",
)  # fmt: skip


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the tables' rows: ours first, then plug-ins by name."""
    place = {name: position for position, name in enumerate(ORDER)}
    return sorted(set(methods), key=lambda name: (place.get(name, len(place)), name))


def is_sparse(method: str) -> bool:
    """Whether a method is SGPR or a variant of it."""
    return method.startswith(SPARSE)


def is_lower_bound(method: str, *, has_upper: bool) -> bool:
    """Whether a method's `elbo` is no higher than the exact log marginal likelihood at its hyperparameters.

    `has_upper` says whether it also reports an upper bound; a plug-in that does is taken to report bounds.
    """
    if is_sparse(method) or method in (OWN, "gpr", "svgp"):
        return True
    return has_upper and method not in (*ESTIMATES, *BASELINES)


def growing_methods(points: pd.DataFrame) -> set[str]:
    """The methods that start again with every larger M: the SGPR family, and those that record a schedule."""
    scheduled = points.loc[points["scheduled_m"].notna(), "method"].unique()
    return {name for name in points["method"].unique() if is_sparse(name)} | set(scheduled)


def bounding_methods(points: pd.DataFrame) -> set[str]:
    """The methods whose `elbo` is a lower bound on, or the value of, the exact log marginal likelihood."""
    has_upper = set(points.loc[points["upper_bound"].notna(), "method"])
    return {name for name in points["method"].unique() if is_lower_bound(name, has_upper=name in has_upper)}
