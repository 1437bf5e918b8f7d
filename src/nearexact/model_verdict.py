"""The verdict on a model from its bounds, its history and the evidence for its hyperparameters, and what it ends."""

from __future__ import annotations

from collections.abc import Sequence

from nearexact.certificate import NEAR_EXACT, Verdict, confirm, judge
from nearexact.evidence import Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.stages import Stage, StageEnd
from nearexact.gp.training import Training
from nearexact.noise_only import explains_nothing


def verdict_on(
    bounds: LikelihoodBounds,
    history: Sequence[Stage],
    objective: float,
    constant: float,
    evidence: Evidence | None,
    is_exact: bool,
) -> Verdict:
    """The verdict on a model: what is proved at its θ next to the constant predictor, and what speaks for this θ."""
    n, parameters = bounds.n, _price(history, evidence)
    steps = [stage.objective for stage in history if stage.complete and stage.n == n]
    verdict = judge(bounds.lower, bounds.upper, steps, constant, n, elbo=objective, parameters=parameters)
    cut_short = bool(history) and history[-1].end in (StageEnd.TIME_LIMIT, StageEnd.INTERRUPTED)
    if verdict == "no better than noise" and cut_short and not explains_nothing(bounds.upper, constant, n, parameters):
        return "not reached"  # the bound is low because the training has hardly begun
    verdict = confirm(verdict, bounds.lower, n, evidence)
    return "exact" if verdict == "certified" and is_exact else verdict


def _price(history: Sequence[Stage], evidence: Evidence | None) -> float | None:
    """How many parameters a likelihood must pay for before it is better than noise."""
    if not history:
        return None
    return history[-1].kernel.size if evidence is None or evidence.price is None else evidence.price


def verdict_so_far(training: Training, evidence: Evidence | None) -> Verdict:
    """The verdict on a sparse model that is being trained."""
    bounds, objective = training.likelihood_bounds(), training.bounds()[0]
    return verdict_on(bounds, training.history, objective, training.noise_only, evidence, is_exact=False)


def reason_to_end(training: Training, verdict: Verdict) -> str | None:
    """Why M need not grow any further, if so."""
    if verdict in NEAR_EXACT or (verdict == "no better than noise" and training.searched_in_vain()):
        return verdict
    return None if training.data.has_signal else "constant target"
