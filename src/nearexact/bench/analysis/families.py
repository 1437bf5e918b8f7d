"""Which methods belong together, and what their `elbo` is: a bound, an estimate, or another model's likelihood.

Methods go by their labels, such as `sgpr{kernel=matern32}`. What a method is, is decided by its base method, here
`sgpr`; a plug-in is nothing but itself, whatever its file is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd

from nearexact.bench.method_labels import base_name

SPARSE = ("sgpr", "sgpr-paper", "sgpr-tight")  # SGPR with growing M
REFERENCES = ("sgpr-paper", "sgpr", "sgpr-tight")  # whose stages are the checkpoints: the first that was run
BASELINES = ("linear", "mean")  # no approximations of a GP: their likelihoods are those of other models
# What these report as `elbo` may be above the exact likelihood.
ESTIMATES = ("itergp", "itergp-paper", "gpr-iterative", "fitc")
OWN = "nearexact"  # the estimator itself: a sparse GP with growing M, or the exact one
ORDER = (  # of rows in tables
    OWN, "itergp", "itergp-paper", "sgpr", "sgpr-paper", "sgpr-tight", "gpr", "gpr-iterative", "svgp", "fitc", "linear",
    "mean",
)  # fmt: skip
NO_BASES: Mapping[str, str] = MappingProxyType({})


def bases_of(frame: pd.DataFrame) -> dict[str, str]:
    """The base method of each label in a table with the columns `method` and `base_method`."""
    return dict(zip(frame["method"], frame["base_method"], strict=True))


def ordered(methods: Iterable[str], bases: Mapping[str, str] = NO_BASES) -> list[str]:
    """Methods in the order of the tables' rows: ours first, each with its variants, then plug-ins by name.

    `bases` has the base methods of labels that do not say theirs themselves.
    """
    place = {name: position for position, name in enumerate(ORDER)}

    def rank(name: str) -> tuple[int, str, bool, str]:
        base = bases.get(name) or base_name(name)
        return place.get(base, len(place)), base, name != base, name

    return sorted(set(methods), key=rank)


def is_lower_bound(base: str, *, has_upper: bool) -> bool:
    """Whether a method's `elbo` is no higher than the exact log marginal likelihood at its hyperparameters.

    `has_upper` says whether it also reports an upper bound; a plug-in that does is taken to report bounds.
    """
    if base in (*SPARSE, OWN, "gpr", "svgp"):
        return True
    return has_upper and base not in (*ESTIMATES, *BASELINES)


def growing_methods(points: pd.DataFrame) -> set[str]:
    """The methods that start again with every larger M: the SGPR family, and those that record a schedule."""
    return set(points.loc[points["base_method"].isin(SPARSE) | points["scheduled_m"].notna(), "method"])


def restarting_methods(points: pd.DataFrame) -> set[str]:
    """The methods that start again and keep the better model: those that grow M, and exact GPs from several starts."""
    is_exact = points["elbo"].eq(points["upper_bound"]).groupby(points["method"]).all()
    bases = bases_of(points)
    ours = {name for name in is_exact.index[is_exact] if bases[name] in ("gpr", OWN)}
    return growing_methods(points) | ours


def bounding_methods(points: pd.DataFrame) -> set[str]:
    """The methods whose `elbo` is a lower bound on, or the value of, the exact log marginal likelihood."""
    has_upper = set(points.loc[points["upper_bound"].notna(), "method"])
    return {name for name, base in bases_of(points).items() if is_lower_bound(base, has_upper=name in has_upper)}
