"""How faithful is an approximation to the exact GP, and if it differs, is it the posterior or the hyperparameters?

With θ_a the approximation's hyperparameters and θ_e the exact GP's own optimum, there are four posteriors on the test
inputs: approximation and exact GP, at θ_a and at θ_e. Where the first two differ, the approximation is unfaithful;
where they agree, only the choice of θ can differ (Ober et al., Recommendation 1). `exchange.py` does the same between
any two methods.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearexact.bench import store
from nearexact.bench.exact_reference import ExactModel, ExactReference, joint_kl
from nearexact.bench.kept_models import Gaussian, KeptModel, SplitRuns, latent, rebuilt, runs_by_split
from nearexact.bench.metrics import crps, nlpd, rmse
from nearexact.bench.protocol import Task
from nearexact.bench.store import RunFolder
from nearexact.evidence import CERTIFIED_GAP
from nearexact.gp import NumericalError
from nearexact.kernels.names import named_kernel
from nearexact.limits import is_out_of_memory, memory_budget
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
EXACT = ("gpr", "gpr-iterative")  # whose training may be the exact GP's own, the first that there is
BASELINES = ("mean", "linear")  # which have no hyperparameters
JOINT_POINTS = 200  # test points of the joint comparison
SAME_POSTERIOR = 0.05  # nats of KL for each test point, in the mean, up to which two posteriors count as the same
SAME_PREDICTION = 0.01  # nats of NLPD

FAITHFUL = "faithful"
BETTER_OPTIMUM = "faithful, and at a better optimum than the exact GP's own training found"
WORSE_OPTIMUM = "faithful, but at a worse optimum"
MISSPECIFIED = "faithful, but at hyperparameters that the exact GP would not choose and that predict better"
UNFAITHFUL = "the approximation itself is unfaithful"


@dataclass(frozen=True)
class Fidelity:
    """The comparison of one run with the exact GP. Numbers that could not be computed are NaN."""

    dataset: str
    method: str
    seed: int
    diagnosis: str
    kernel: str
    reference: str  # how the exact GP was computed: "cholesky" or "iterative"
    test_points: int  # that marginals and scores are of: all of them, or the first if the reference is iterative
    kl: float  # mean over test points of KL[approximation ‖ exact] of latent marginals, both at θ_a
    wasserstein: float  # mean 2-Wasserstein distance of the same marginals
    joint_kl: float  # KL of the joint on at most 200 test points, for each of them
    mean_error: float  # root mean square, in units of the exact predictive standard deviation
    std_error: float  # the same of the predictive standard deviation
    kl_at_exact: float  # as `kl`, but with both at θ_e
    lml_difference: float  # exact LML at θ_a minus exact LML at θ_e, for each training point
    lml_difference_error: float  # its standard error: 0 by Cholesky
    lml: float  # exact LML at θ_a
    lml_lower: float  # proved bounds on it
    lml_upper: float
    lml_at_exact: float  # exact LML at θ_e
    reference_mean_error: float  # proved: what the exact means may be off, in standard deviations of the noise
    nlpd: float  # approximation at θ_a
    nlpd_exact: float  # exact GP at θ_a
    nlpd_at_exact: float  # approximation at θ_e
    nlpd_exact_at_exact: float  # exact GP at θ_e
    rmse: float
    rmse_exact: float
    rmse_at_exact: float
    rmse_exact_at_exact: float
    crps: float
    crps_exact: float
    crps_at_exact: float
    crps_exact_at_exact: float


def compare(
    results: Path, *, memory_limit: int | float | str | None = None, time_limit: float = 600.0
) -> Iterator[Fidelity | str]:
    """Compare all runs below a folder that recorded their hyperparameters; a sentence for each that cannot be compared.

    θ_e is that of the `gpr` run of the same split and kernel if it finished; one that was cut short is continued here,
    and without one the exact GP is trained here, for at most `time_limit` seconds. Where its matrix does not fit into
    the memory, conjugate gradients take the place of Cholesky.
    """
    for (dataset, seed), split_runs in runs_by_split(results).items():
        try:
            yield from _compare_split(dataset, seed, split_runs, memory_limit, time_limit)
        except (ValueError, MemoryError, NumericalError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            yield f"{dataset}, seed {seed}: {error}"


def write(results: Path, comparisons: list[Fidelity]) -> Path:
    """Keep the comparisons in the results folder, where the report looks for them."""
    path = results / store.FIDELITY
    store.write_whole(path, json.dumps([asdict(comparison) for comparison in comparisons], indent=1) + "\n")
    return path


def scores(y: FloatArray, prediction: Gaussian | None) -> tuple[float, float, float]:
    """NLPD, RMSE and CRPS of a prediction of observations; NaN without one."""
    if prediction is None:
        return math.nan, math.nan, math.nan
    mean, variance = prediction.of_observations
    return nlpd(y, mean, variance), rmse(y, mean), crps(y, mean, variance)


def task_of(dataset: str, seed: int, split: SplitRuns, memory: int) -> Task:
    """The task of a split without a time limit, for methods that rebuild a posterior."""
    data, threads = split.data, torch.get_num_threads()
    return Task(dataset, data.X_train, data.y_train, len(data.y_test), seed, math.inf, memory, "cpu", threads)


def _compare_split(
    dataset: str, seed: int, runs: list[RunFolder], memory_limit: int | float | str | None, time_limit: float
) -> Iterator[Fidelity | str]:
    split = SplitRuns.of(dataset, seed, runs)
    for run in runs:
        if run not in split.models and split.base(run) not in BASELINES:
            yield f"{run.path}: no predictions with hyperparameters are kept"
    free = memory_budget(memory_limit, CPU)
    task = task_of(dataset, seed, split, free)
    for name in dict.fromkeys(model.kernel_name for model in split.models.values()):
        models = {run: model for run, model in split.models.items() if model.kernel_name == name}
        trained = _trained(split, models)
        others = {run: model for run, model in models.items() if split.base(run) != EXACT[0]}
        if not others:
            continue
        reference = ExactReference(named_kernel(name), split.data, free, seed)
        at_exact = reference.at(*reference.optimum(trained, time_limit))
        for run, model in others.items():
            try:
                yield _compare_run(split.specs[run], task, model, reference, at_exact)
            except Exception as error:  # a plug-in's mistake, or parameters at which nothing can be computed
                yield f"{run.path}: {type(error).__name__}: {error}"


def _trained(split: SplitRuns, models: dict[RunFolder, KeptModel]) -> tuple[RunFolder, KeptModel] | None:
    """The run of the exact GP, if there is one."""
    for base in EXACT:
        for run, model in models.items():
            if split.base(run) == base:
                return run, model
    return None


def _compare_run(
    spec: dict[str, Any], task: Task, model: KeptModel, reference: ExactReference, at_exact: ExactModel
) -> Fidelity:
    X, y = reference.X_test, reference.y_test
    theta_e = at_exact.posterior.kernel, at_exact.posterior.noise_variance
    own_e = _at(spec, task, *theta_e, model.m)
    own_a = _at(spec, task, model.kernel, model.noise_variance, model.m)
    exact = reference.at(model.kernel, model.noise_variance)
    approximation, approximation_e = model.predictions.first(len(y)), None if own_e is None else latent(own_e, X)
    kl = marginal_kl(approximation, exact.latent)
    difference = (exact.lml - at_exact.lml) / len(task.y_train)
    error = math.hypot(exact.standard_error, at_exact.standard_error) / len(task.y_train)
    named = {
        "": approximation,
        "_exact": exact.latent,
        "_at_exact": approximation_e,
        "_exact_at_exact": at_exact.latent,
    }
    scored = {name: scores(y, prediction) for name, prediction in named.items()}
    spread, std = (np.sqrt(g.of_observations[1]) for g in (exact.latent, approximation))
    return Fidelity(
        dataset=spec["dataset"],
        method=spec["method"],
        seed=spec["seed"],
        diagnosis=diagnose(kl, difference, scored["_exact"][0], scored["_exact_at_exact"][0], standard_error=error),
        kernel=model.kernel_name,
        reference=reference.way,
        test_points=len(y),
        kl=kl,
        wasserstein=marginal_wasserstein(approximation, exact.latent),
        joint_kl=joint_kl(own_a, exact, X, JOINT_POINTS),
        mean_error=float(np.sqrt(np.mean(((approximation.mean - exact.latent.mean) / spread) ** 2))),
        std_error=float(np.sqrt(np.mean((std / spread - 1.0) ** 2))),
        kl_at_exact=marginal_kl(approximation_e, at_exact.latent) if approximation_e else math.nan,
        lml_difference=difference,
        lml_difference_error=error,
        lml=exact.lml,
        lml_lower=exact.lower,
        lml_upper=exact.upper,
        lml_at_exact=at_exact.lml,
        reference_mean_error=exact.mean_error,
        **{
            f"{score}{name}": values[k]
            for name, values in scored.items()
            for k, score in enumerate(("nlpd", "rmse", "crps"))
        },
    )


def _at(spec: dict[str, Any], task: Task, kernel: Any, noise_variance: float, m: int | None) -> Any | None:
    """A method's own posterior at given hyperparameters; None if it cannot compute that."""
    try:
        return rebuilt(spec, task, kernel, noise_variance, m)
    except NumericalError as error:
        logger.info("%s at other hyperparameters: %s", spec["method"], error)
        return None


def diagnose(
    kl: float, lml_difference: float, nlpd_here: float, nlpd_there: float, *, standard_error: float = 0.0
) -> str:
    """The diagnosis: first whether the posterior is right, then whether the hyperparameters are.

    `lml_difference` is the exact LML at the approximation's hyperparameters minus that at the exact GP's own, for each
    training point, with its standard error; the NLPDs are the exact GP's at the one and at the other.
    """
    least = CERTIFIED_GAP + 2.0 * standard_error  # a difference that counts
    if not kl <= SAME_POSTERIOR:
        return UNFAITHFUL
    if lml_difference > least:
        return BETTER_OPTIMUM
    if lml_difference < -least:
        return MISSPECIFIED if nlpd_here < nlpd_there - SAME_PREDICTION else WORSE_OPTIMUM
    return FAITHFUL


def marginal_kl(a: Gaussian, e: Gaussian) -> float:
    """Mean over the points of KL[a ‖ e] between latent marginals."""
    ratio = a.variance / e.variance
    return float(np.mean(0.5 * (ratio - 1.0 - np.log(ratio) + (a.mean - e.mean) ** 2 / e.variance)))


def marginal_wasserstein(a: Gaussian, e: Gaussian) -> float:
    """Mean over the points of the 2-Wasserstein distance between latent marginals."""
    return float(np.mean(np.hypot(a.mean - e.mean, np.sqrt(a.variance) - np.sqrt(e.variance))))
