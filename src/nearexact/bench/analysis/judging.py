"""The verdict on each run: what it shows at its own hyperparameters θ, and what speaks for these.

At θ, sparse GPs are judged by their bounds and by what larger M changed (`nearexact.certificate.judge`), other methods
by their bounds if they have two, else by the best near-exact value on the same split; an exact GP also by whether its
training had ended. Evidence for θ is that which the run has recorded (`nearexact.certificate.confirm`, as for the
estimators), else that of other runs (hyperparameters.py). Linear and mean are no approximations of a GP and get no
verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nearexact.bench import store
from nearexact.bench.analysis.families import BASELINES, OWN, SPARSE
from nearexact.bench.analysis.hyperparameters import (
    NOBODY_LOOKED,
    NOT_LOOKED,
    Split,
    Value,
    doubt,
    in_short,
    objection,
    proved_values,
    recorded_evidence,
    supporter,
    tolerance,
)
from nearexact.bench.analysis.points import EVIDENCE, KEY, RunKey, last_at, run_positions
from nearexact.bench.analysis.results import Results, Size
from nearexact.certificate import CONVERGED_STEPS, NEAR_EXACT, Estimate, confirm, judge, judge_estimate
from nearexact.evidence import STANDARD_ERRORS
from nearexact.noise_only import NOISE_MARGIN, explains_nothing

NO_RESULT, BASELINE = "no result", "baseline"
BEST_VALUE = "the best near-exact value"  # what a run may be judged by
SIZE_UNKNOWN = "the size of the data set is not known"
HARDLY_BEGUN = "it had hardly begun to train"
COLUMNS = [
    *KEY, "verdict", "gap_per_point", "m", "seconds", "flops", "peak_memory_mb", "lml", "hyperparameters", "basis"
]  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """The verdict on a run, and what it rests on."""

    key: RunKey
    verdict: str
    basis: str
    lml: float = math.nan
    gap: float = math.nan  # nats per point
    at: pd.Series | None = None  # the point from which on it was near-exact
    hyperparameters: str = ""  # what speaks for them, in words

    @property
    def row(self) -> tuple[Any, ...]:
        """In the order of COLUMNS."""
        costs = ("m", "elapsed", "flops", "peak_memory_mb")
        spent = [math.nan if self.at is None else float(self.at[cost]) for cost in costs]
        return (*self.key, self.verdict, self.gap, *spent, self.lml, self.hyperparameters, self.basis)


def run_verdicts(results: Results) -> pd.DataFrame:
    """A row for each run: its verdict, and the M and the costs at which near-exactness was reached and kept."""
    verdicts = _Verdicts(results)
    keys: list[RunKey] = list(results.runs[KEY].itertuples(index=False, name=None))
    return pd.DataFrame([verdicts.judgement(key).row for key in keys], columns=COLUMNS)


class _Verdicts:
    """Those on the runs of a results folder. Runs that others are compared with are judged first."""

    def __init__(self, results: Results) -> None:
        self.sizes, self.bases = results.sizes, results.bases
        self.late = set(results.points[KEY].itertuples(index=False, name=None))  # those without a curve were too late
        self.curves = {key: results.smoothed.iloc[rows] for key, rows in run_positions(results.smoothed)}
        self.statuses = dict(
            zip(results.runs[KEY].itertuples(index=False, name=None), results.runs["status"], strict=True)
        )
        self.proved = proved_values(results)
        self.milestones = {key: ends for key, ends in _judged_milestones(results) if self.sizes[key[0]].n is not None}
        self.near_exact: dict[Split, list[Value]] = {}  # they speak for those who come near to them
        self.reached: dict[Split, list[Value]] = {}  # by whatever method
        for key, curve in self.curves.items():
            if self.bases[key[1]] not in BASELINES:
                self.reached.setdefault(_split(key), []).append(Value(key, float(curve["elbo"].iloc[-1])))
        self.judged: dict[RunKey, Judgement] = {}
        with_evidence = [key for key, ends in self.milestones.items() if _has_evidence(ends)]
        for key in with_evidence:
            self.judged[key] = self._by_milestones(key)
            if self.judged[key].verdict in NEAR_EXACT:
                estimate = recorded_estimate(self.milestones[key].iloc[-1])
                lower = lower_bounds(self.milestones[key])[-1]
                self._add_value(key, lower if estimate is None else estimate.value)
        for key in [key for key, curve in self.curves.items() if key not in self.judged and _is_exact(curve)]:
            lml = float(self.curves[key]["elbo"].iloc[-1])
            if self._has_trained(key) and not self._objection(key, lml):
                self._add_value(key, lml)

    def judgement(self, key: RunKey) -> Judgement:
        """The verdict on a run."""
        if key in self.judged:
            return self.judged[key]
        curve, size = self.curves.get(key), self.sizes[key[0]]
        lml = math.nan if curve is None else float(curve["elbo"].iloc[-1])
        if self.bases[key[1]] in BASELINES:
            return Judgement(key, NO_RESULT if curve is None else BASELINE, "no approximation of a GP", lml)
        if curve is None and key in self.late:
            return Judgement(key, "not reached", "its first value came after the budget")
        if curve is None or not math.isfinite(lml):
            return Judgement(key, NO_RESULT, "no log marginal likelihood at its end")
        if size.n is None:
            return Judgement(key, NO_RESULT, SIZE_UNKNOWN, lml)
        if key in self.milestones:
            return self._by_milestones(key)
        if self._grows(key, curve):
            return Judgement(key, "not reached", "no M was done", lml)
        if explains_nothing(lml, size.noise_only, size.n, size.parameters):
            gap = float(curve["upper_bound"].iloc[-1] - lml) / size.n
            if not stood_still(curve, self.statuses[key], size):
                return Judgement(key, "not reached", HARDLY_BEGUN, lml, gap)
            return Judgement(key, "no better than noise", "the constant predictor", lml, gap)
        return self._by_curve(key)

    # ---- by milestones ---------------------------------------------------------------------------------------------

    def _by_milestones(self, key: RunKey) -> Judgement:
        """The verdict on a run with stages of growing M, or with evidence of its own for its θ."""
        ends, size = self.milestones[key], self.sizes[key[0]]
        assert size.n is not None
        grows, has_evidence = self._grows(key, ends), _has_evidence(ends)
        elbo, lower, upper = ends["elbo"].tolist(), lower_bounds(ends), ends["upper_bound"].tolist()
        estimates = [recorded_estimate(end) for _, end in ends.iterrows()]
        reached = [
            low if estimate is None else at_least(estimate) for low, estimate in zip(lower, estimates, strict=True)
        ]
        at_theta, verdicts, steps = [], [], []  # the steps are the ELBOs of complete stages
        for k, complete in enumerate(ends["complete"]):
            steps += [elbo[k]] if complete and grows else []
            estimate, evidence = estimates[k], recorded_evidence(ends.iloc[k])
            own = elbo[k] if estimate is None else estimate.value
            parameters = size.parameters if evidence is None or evidence.price is None else evidence.price
            at_theta.append(judge(lower[k], upper[k], steps, size.noise_only, size.n, elbo=own, parameters=parameters))
            verdict = at_theta[k]
            if has_evidence:
                verdict = confirm(verdict, lower[k], size.n, evidence)
            if verdict == "certified" and not grows and upper[k] == lower[k]:
                verdict = "exact"
            if estimate is not None and verdict not in NEAR_EXACT:  # as the estimator judges itself
                error = float(ends["mean_error"].iloc[k])
                if judge_estimate(estimate, size.noise_only, size.n, evidence, error) == "exact":
                    at_theta[k] = verdict = "exact"
            proved_against = verdict in NEAR_EXACT and self._objection(key, reached[k])
            verdicts.append("not reached" if proved_against else verdict)
        basis = "its own bounds and the steps up in M" if grows else "its own bounds"
        if at_theta[-1] == "exact":
            basis = "its own estimate and how far its means may be off"
        evidence = recorded_evidence(ends.iloc[-1])
        words = NOT_LOOKED if evidence is None else in_short(evidence, size.n)
        if at_theta[-1] in NEAR_EXACT:
            against = self._objection(key, reached[-1])
            if against:
                basis = against
            elif has_evidence:
                is_confirmed = verdicts[-1] in NEAR_EXACT
                basis = (
                    f"{basis}, and its search" if is_confirmed else f"{at_theta[-1]} at its own, but {doubt(evidence)}"
                )
            else:
                other = supporter(key, lower[-1], self.near_exact.get(_split(key), []), size)
                if other is None:
                    basis = f"{NOBODY_LOOKED}; {at_theta[-1]} at its own"
                    verdicts[-1] = "not reached"
                words = _compared(other, [value.key[1] for value in self.near_exact.get(_split(key), [])])
        if verdicts[-1] == "no better than noise" and grows and not self._has_grown(key, len(steps)):
            verdicts[-1], basis = "not reached", HARDLY_BEGUN
        first = len(verdicts)  # the stage from which on all are near-exact
        while first > 0 and verdicts[first - 1] in NEAR_EXACT:
            first -= 1
        at = ends.iloc[first] if first < len(ends) else None
        return Judgement(key, verdicts[-1], basis, elbo[-1], (upper[-1] - lower[-1]) / size.n, at, words)

    # ---- by the curve ----------------------------------------------------------------------------------------------

    def _by_curve(self, key: RunKey) -> Judgement:
        """The verdict on a run without stages and evidence: by its bounds if it has two, else by near-exact values."""
        curve, size = self.curves[key], self.sizes[key[0]]
        assert size.n is not None
        lml, upper = float(curve["elbo"].iloc[-1]), float(curve["upper_bound"].iloc[-1])
        values = self.near_exact.get(_split(key), [])
        best = max((value.lml for value in values if value.key != key), default=None)
        other, against = supporter(key, lml, values, size), self._objection(key, lml)
        goal = lml if best is None else best
        if _is_exact(curve) and self._has_trained(key):
            # Another method that ends with the same value is a second training that leads to this optimum.
            other = other or supporter(key, lml, self.reached[_split(key)], size)
            verdict, basis, goal = "converged", "its training, which had ended", max(lml, goal)
        elif _is_exact(curve):
            verdict, basis = "converged" if other else "not reached", BEST_VALUE if other else "training was cut short"
            goal = max(lml, goal)
        elif math.isfinite(upper):
            verdict, basis = (
                judge(lml, upper, [], size.noise_only, size.n, parameters=size.parameters),
                "its own bounds",
            )
            goal = max(lml, goal)
        elif best is None:
            verdict, basis = "not reached", against or "no near-exact value to compare with"
        else:  # that an estimate is near the right value is necessary, not sufficient
            is_near = abs(lml - best) <= tolerance(best, size)
            verdict, basis = "converged" if is_near else "not reached", BEST_VALUE
        words = _compared(other, [value.key[1] for value in values if value.key != key])
        if verdict in NEAR_EXACT and against:
            verdict, basis = "not reached", against
        elif verdict in NEAR_EXACT and other is None:
            verdict, basis = "not reached", f"{NOBODY_LOOKED}; {verdict} at its own"
        near = (curve["elbo"] - goal).abs().to_numpy() <= tolerance(goal, size)
        if not near[-1] and basis != against:
            side = "above" if lml > goal else "below"
            basis = f"{basis}; {abs(lml - goal) / size.n:.2g} nats per point {side} {BEST_VALUE}"
        first = len(near) - int(np.argmin(near[::-1])) if not near.all() else 0  # from which on all are near
        at = curve.iloc[first] if verdict in NEAR_EXACT and near[-1] else None
        basis = basis.removeprefix(f"{BEST_VALUE}; ")
        return Judgement(key, verdict, basis, lml, (upper - lml) / size.n, at, words)

    def _grows(self, key: RunKey, points: pd.DataFrame) -> bool:
        """Whether a run is a sparse GP with growing M: by its method, or by what it has recorded."""
        base = self.bases[key[1]]
        return base in SPARSE or (base == OWN and bool(points["m"].notna().any()))

    def _has_grown(self, key: RunKey, complete: int) -> bool:
        """Whether a sparse GP has had enough stages for "no better than noise": few points explain little of anything.

        As many as convergence takes, unless it ended by itself.
        """
        return self.statuses[key] == store.RunStatus.FINISHED or complete > CONVERGED_STEPS

    def _has_trained(self, key: RunKey) -> bool:
        return training_had_ended(self.curves[key], self.statuses[key], self.sizes[key[0]])

    def _objection(self, key: RunKey, lml: float) -> str:
        n = self.sizes[key[0]].n
        return "" if n is None else objection(key, lml, self.proved.get(_split(key)), n)

    def _add_value(self, key: RunKey, lml: float) -> None:
        size = self.sizes[key[0]]
        if (
            size.n is not None
            and math.isfinite(lml)
            and not explains_nothing(lml, size.noise_only, size.n, size.parameters)
        ):
            self.near_exact.setdefault(_split(key), []).append(Value(key, lml))


def _judged_milestones(results: Results) -> list[tuple[RunKey, pd.DataFrame]]:
    """The milestones of the runs that are judged by them: sparse GPs, and whoever has bounds and evidence."""
    ends = results.milestones
    by_stages = (*SPARSE, OWN)
    stages = {key: ends.iloc[rows] for key, rows in run_positions(ends) if results.bases[key[1]] in by_stages}
    points = results.counted
    marks = points[points["milestone"] & ~points["cut_short"] & np.isfinite(points["upper_bound"])]
    marks = marks[marks[EVIDENCE[0]].notna()]
    return list(({key: marks.iloc[rows] for key, rows in run_positions(marks)} | stages).items())


def lower_bounds(ends: pd.DataFrame) -> list[float]:
    """The best lower bound on the log marginal likelihood at each point: the ELBO where no better one was recorded.

    What has a standard error is an estimate and proves nothing.
    """
    elbo = ends["elbo"].where(ends["standard_error"].isna()).to_numpy()
    bounds: list[float] = np.fmax(ends["lower_bound"].to_numpy(), elbo).tolist()
    return bounds


def at_least(estimate: Estimate) -> float:
    """What the likelihood is with next to no doubt."""
    return estimate.value - STANDARD_ERRORS * estimate.standard_error


def recorded_estimate(point: Any) -> Estimate | None:
    """The likelihood of an exact GP by conjugate gradients, with its standard error; None of any other model."""
    value = point["elbo"] if math.isnan(point["estimate"]) else point["estimate"]
    if not (math.isfinite(value) and math.isfinite(point["standard_error"]) and math.isfinite(point["mean_error"])):
        return None
    return Estimate(float(value), float(point["standard_error"]))


def training_had_ended(curve: pd.DataFrame, status: str, size: Size) -> bool:
    """Whether an exact GP, which has no gap at whatever hyperparameters, was done with finding good ones.

    If it was cut short, thirds of its time take the place of steps up in M: it counts as done if the second and the
    last third changed the log marginal likelihood as little as such steps may, and each led to a point of its own.
    """
    if status == store.RunStatus.FINISHED or size.n is None:
        return True
    values = _after_each_third(curve)
    lml = float(curve["elbo"].iloc[-1])
    return judge(lml, math.nan, values, size.noise_only, size.n, parameters=size.parameters) in NEAR_EXACT


def stood_still(curve: pd.DataFrame, status: str, size: Size) -> bool:
    """Whether a run that explains nothing had ended, or had stopped to gain anything: a first step says little.

    That is, the second and the last third of its time each changed its log marginal likelihood by less than what counts
    as better than noise.
    """
    assert size.n is not None
    values = _after_each_third(curve)
    return status == store.RunStatus.FINISHED or (
        len(values) > 0 and bool((np.abs(np.diff(values)) < NOISE_MARGIN * size.n).all())
    )


def _after_each_third(curve: pd.DataFrame) -> list[float]:
    """The log marginal likelihood after each third of a run's time; empty unless each has a point of its own."""
    elapsed, lml = curve["elapsed"].to_numpy(), curve["elbo"].to_numpy()
    at = last_at(elapsed, elapsed[-1] * np.array([1.0 / 3.0, 2.0 / 3.0, 1.0]))
    values: list[float] = lml[at].tolist() if at[0] >= 0 and (np.diff(at) > 0).all() else []
    return values


def _has_evidence(ends: pd.DataFrame) -> bool:
    return any(recorded_evidence(ends.iloc[k]) is not None for k in range(len(ends)))


def _is_exact(curve: pd.DataFrame) -> bool:
    return bool(curve["upper_bound"].iloc[-1] == curve["elbo"].iloc[-1])


def _split(key: RunKey) -> Split:
    return key[0], key[2]


def _compared(same: str | None, methods: list[str]) -> str:
    """What the comparison with the near-exact runs of these methods says, one of which may have the same value."""
    if same is not None:
        return f"same value as {same}"
    return f"another value than {methods[0]}" if methods else NOT_LOOKED
