"""What speaks for the hyperparameters θ of a run: its own search, or what other runs on the same split have shown.

Bounds that meet at θ say nothing about other θ. So a verdict of near-exactness needs evidence: that of the run itself,
if it has recorded any, else a run that has some, or a trained exact GP, which ends with the same value. Against it
speaks any value that is proved to be higher, wherever it was reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearexact.bench.analysis.points import EVIDENCE, KEY, RunKey
from nearexact.bench.analysis.results import Results, Size
from nearexact.certificate import CONVERGED_CHANGE
from nearexact.evidence import CERTIFIED_GAP, FEWEST_AGREEING, Evidence, are_enough
from nearexact.noise_only import explains_nothing

NOBODY_LOOKED = "nobody has looked for better hyperparameters"
NOT_LOOKED = "not compared with others"  # the same in the column of the evidence
LEAST_SHOWN = 1e-6  # nats per row: less is rounding noise
Split = tuple[str, int]  # data set and seed


# ---- a run's own search ----------------------------------------------------------------------------------------------


def recorded_evidence(point: Any) -> Evidence | None:
    """What a point of a trace says about its θ; None if it says nothing, or nothing that can be right."""
    rows, starts, agreeing, gain_per_row, likelihood, price = (
        math.nan if point[name] is None else float(point[name]) for name in EVIDENCE
    )
    if not (rows >= 1.0 and starts >= agreeing >= 0.0 and math.isfinite(rows) and math.isfinite(starts)):
        return None
    gain, paid = (None if math.isnan(value) else value for value in (gain_per_row, price))
    return Evidence(int(rows), int(starts), int(agreeing), gain, likelihood, paid)


def in_short(evidence: Evidence, n: int) -> str:
    """The evidence in the words of a table, for a model of n rows."""
    rows = "" if evidence.rows >= n else f" on {evidence.rows} rows"
    gain = evidence.gain_per_row
    left = (
        "not all followed to their end"
        if gain is None
        else f"{gain if gain >= LEAST_SHOWN else 0.0:.2g} nats per row left"
    )
    if evidence.starts == 0:
        return f"no start was followed to its end{rows}"
    return f"{evidence.agreeing} of {evidence.starts} starts agree{rows}, {left}"


def doubt(evidence: Evidence | None) -> str:
    """Why a run's own search does not speak for its θ."""
    if evidence is None:
        return "there was no search"
    if evidence.agreeing < FEWEST_AGREEING and evidence.starts > 1:
        return "the starts of its search do not agree"
    if evidence.gain_per_row is None:
        return "there was no time to follow all of them to their end"
    if not are_enough(evidence.agreeing, evidence.starts):
        return "too few starts of its search agree"
    return "its search has found better ones"


# ---- other runs on the same split ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """A log marginal likelihood that a run has reached."""

    key: RunKey
    lml: float


def proved_values(results: Results) -> dict[Split, Value]:
    """The highest proved value of each split, and whose it is: an exact one, or a lower bound.

    Bounds far out of order are a numerical failure and prove nothing. Data sets of unknown size are left out.
    """
    points = results.points
    n = points["dataset"].map({name: size.n for name, size in results.sizes.items()}).astype(float)
    lower = np.fmax(points["lower_bound"], points["elbo"])
    in_order = ~(points["upper_bound"] < lower - CERTIFIED_GAP * n)
    lower = lower.where(points["method"].isin(results.bounding) & in_order)
    proved = np.fmax(lower, points["exact_lml"]).where(n.notna()).replace([math.inf, -math.inf], math.nan)
    values: dict[Split, Value] = {}
    for row, lml in proved.dropna().groupby([points["dataset"], points["seed"]]).agg(["idxmax", "max"]).to_numpy():
        dataset, method, seed = points.loc[int(row), KEY]
        values[dataset, seed] = Value((dataset, method, seed), float(lml))
    return values


def objection(key: RunKey, lml: float, proved: Value | None, n: int) -> str:
    """What is proved against a run that has reached this value: empty if nothing is."""
    if proved is None or not proved.lml - lml > CERTIFIED_GAP * n:
        return ""
    more = f"{(proved.lml - lml) / n:.2g} nats per point more"
    return f"it had {more} on the way" if proved.key == key else f"another run proves {more} ({proved.key[1]})"


def tolerance(value: float, size: Size) -> float:
    """How far from a near-exact value another one may be, in nats: as much as the verdicts on SGPR allow."""
    assert size.n is not None
    return max(CERTIFIED_GAP * size.n, CONVERGED_CHANGE * abs(value - size.noise_only))


def supporter(key: RunKey, lml: float, values: Iterable[Value], size: Size) -> str | None:
    """The method of another run that has reached the same value, the nearest one; None if there is none."""
    assert size.n is not None
    near = [
        (abs(value.lml - lml), value.key[1])
        for value in values
        if value.key != key
        and abs(value.lml - lml) <= tolerance(value.lml, size)
        and not explains_nothing(value.lml, size.noise_only, size.n, size.parameters)
    ]
    return min(near)[1] if near else None
