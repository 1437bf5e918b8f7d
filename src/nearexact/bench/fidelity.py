"""How faithful is an approximation to the exact GP, and if it differs, is it the posterior or the hyperparameters?

With θ_a the approximation's hyperparameters and θ_e the exact GP's own optimum, there are four posteriors on the test
inputs: approximation and exact GP, at θ_a and at θ_e. Where the first two differ, the approximation is unfaithful;
where they agree, what is left is the choice of θ (Ober et al., Recommendation 1). Only where the exact GP fits in
memory.
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

from nearexact.bench import datasets, methods, store
from nearexact.bench.metrics import nlpd, rmse
from nearexact.bench.protocol import Task
from nearexact.bench.store import RunFolder
from nearexact.certificate import CERTIFIED_GAP
from nearexact.gp import ExactObjective, ExactPosterior, ExactTraining, NumericalError, minimise
from nearexact.gp.exact_training import exact_memory
from nearexact.kernels import SquaredExponential
from nearexact.limits import is_out_of_memory, memory_budget
from nearexact.typing import FloatArray

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
JOINT_POINTS = 200  # test points of the joint comparison
SAME_POSTERIOR = 0.05  # nats of KL for each test point, in the mean, up to which two posteriors count as the same
SAME_PREDICTION = 0.01  # nats of NLPD
LEAST_VARIANCE = 1e-9  # of a latent function, relative to the kernel's: below that it is rounding noise

FAITHFUL = "faithful"
BETTER_OPTIMUM = "faithful, and at a better optimum than the exact GP's own training found"
WORSE_OPTIMUM = "faithful, but at a worse optimum"
MISSPECIFIED = "faithful, but at hyperparameters that the exact GP would not choose and that predict better"
UNFAITHFUL = "the approximation itself is unfaithful"


@dataclass(frozen=True)
class Gaussian:
    """Latent marginals at the test inputs, and the noise that observations have in addition."""

    mean: FloatArray  # [N*]
    variance: FloatArray  # [N*]
    noise_variance: float


@dataclass(frozen=True)
class Fidelity:
    """One run next to the exact GP. Figures that could not be had are NaN."""

    dataset: str
    method: str
    seed: int
    diagnosis: str
    kl: float  # mean over test points of KL[approximation ‖ exact] of latent marginals, both at θ_a
    wasserstein: float  # mean 2-Wasserstein distance of the same marginals
    joint_kl: float  # KL of the joint on at most 200 test points, for each of them
    mean_error: float  # root mean square, in units of the exact predictive standard deviation
    std_error: float  # the same of the predictive standard deviation
    kl_at_exact: float  # the first figure with both at θ_e
    lml_difference: float  # exact LML at θ_a minus exact LML at θ_e, for each training point
    lml: float  # exact LML at θ_a
    lml_at_exact: float  # exact LML at θ_e
    nlpd: float  # approximation at θ_a
    nlpd_exact: float  # exact GP at θ_a
    nlpd_at_exact: float  # approximation at θ_e
    nlpd_exact_at_exact: float  # exact GP at θ_e
    rmse: float
    rmse_exact: float
    rmse_at_exact: float
    rmse_exact_at_exact: float


def compare(
    results: Path, *, memory_limit: int | float | str | None = None, time_limit: float = 600.0
) -> Iterator[Fidelity | str]:
    """All runs below a folder whose traces name their hyperparameters; a sentence for each that cannot be compared.

    θ_e is that of the `gpr` run of the same split if it was done; one that was cut short is continued here, and without
    one the exact GP is trained here, for at most `time_limit` seconds.
    """
    by_split: dict[tuple[str, int], list[RunFolder]] = {}
    for run in store.runs(results):
        spec = run.read().get("spec") or {}
        if {"dataset", "seed", "method"} <= spec.keys():
            by_split.setdefault((spec["dataset"], spec["seed"]), []).append(run)
    for (dataset, seed), found in by_split.items():
        try:
            yield from _compare_split(dataset, seed, found, memory_limit, time_limit)
        except (ValueError, MemoryError, NumericalError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            yield f"{dataset}, seed {seed}: {error}"


def write(results: Path, found: list[Fidelity]) -> Path:
    """Keep the comparison in the results folder, where the report finds it."""
    path = results / store.FIDELITY
    store.write_whole(path, json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return path


def _compare_split(
    dataset: str, seed: int, runs: list[RunFolder], memory_limit: int | float | str | None, time_limit: float
) -> Iterator[Fidelity | str]:
    specs = {run: run.read()["spec"] for run in runs}
    models = {run: model for run in runs if (model := _last_model(run)) is not None}
    others = {run: model for run, model in models.items() if specs[run]["method"] != "gpr"}
    for run in runs:
        if run not in models and specs[run]["method"] not in ("mean", "linear"):
            yield f"{run.path}: no predictions with lengthscales, variance and noise_variance are kept"
    if not others:
        return
    data = datasets.load_split(dataset, seed)
    needed, free = exact_memory(SquaredExponential(), len(data.y_train)), memory_budget(memory_limit, CPU)
    if needed > free:
        raise MemoryError(f"the exact GP needs {needed / 1e9:.3g} GB, there are {free / 1e9:.3g} GB")
    exact = ExactObjective(SquaredExponential(), 0.01, data.X_train, data.y_train)
    of_gpr = next(((run, model) for run, model in models.items() if run not in others), None)
    kernel_e, noise_e = _optimum(data, of_gpr, free, time_limit)
    posterior_e = exact.factorise(kernel_e, noise_e)
    reference = _Reference(data, kernel_e, noise_e, posterior_e.lml, _latent(posterior_e, data.X_test))
    del posterior_e  # an [N, N] array
    threads, budget = torch.get_num_threads(), math.inf
    task = Task(dataset, data.X_train, data.y_train, len(data.y_test), seed, budget, int(free), "cpu", threads)
    for run, model in others.items():
        try:
            yield _compare_run(specs[run], task, model, reference, exact)
        except Exception as error:  # a plug-in's mistake, or parameters at which nothing can be computed
            yield f"{run.path}: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class _Reference:
    """The exact GP at its own optimum."""

    data: datasets.Split
    kernel: Any
    noise_variance: float
    lml: float
    latent: Gaussian


def _compare_run(
    spec: dict[str, Any], task: Task, model: _Model, reference: _Reference, exact: ExactObjective
) -> Fidelity:
    data = reference.data
    rebuilt_e = _rebuilt(spec, task, reference.kernel, reference.noise_variance, model.m)
    approximation_e = _latent(rebuilt_e, data.X_test) if rebuilt_e is not None else None
    rebuilt_a = _rebuilt(spec, task, model.kernel, model.noise_variance, model.m)
    posterior_a = exact.factorise(model.kernel, model.noise_variance)
    return _judge(
        spec,
        data,
        model.predictions,
        _latent(posterior_a, data.X_test),
        approximation_e,
        reference.latent,
        lml=posterior_a.lml,
        lml_e=reference.lml,
        joint_kl=_joint_kl(rebuilt_a, posterior_a, data.X_test),
    )


def _judge(
    spec: dict[str, Any],
    data: datasets.Split,
    approximation: Gaussian,
    exact: Gaussian,
    approximation_e: Gaussian | None,
    exact_e: Gaussian,
    *,
    lml: float,
    lml_e: float,
    joint_kl: float,
) -> Fidelity:
    y_test = data.y_test
    kl, difference = marginal_kl(approximation, exact), (lml - lml_e) / len(data.y_train)
    scores = {"nlpd": approximation, "nlpd_exact": exact, "nlpd_exact_at_exact": exact_e}
    densities = {name: nlpd(y_test, g.mean, g.variance + g.noise_variance) for name, g in scores.items()}
    errors = {name.replace("nlpd", "rmse"): rmse(y_test, g.mean) for name, g in scores.items()}
    spread = np.sqrt(exact.variance + exact.noise_variance)
    std = np.sqrt(approximation.variance + approximation.noise_variance)
    return Fidelity(
        dataset=spec["dataset"],
        method=spec["method"],
        seed=spec["seed"],
        diagnosis=diagnose(kl, difference, densities["nlpd_exact"], densities["nlpd_exact_at_exact"]),
        kl=kl,
        wasserstein=marginal_wasserstein(approximation, exact),
        joint_kl=joint_kl,
        mean_error=float(np.sqrt(np.mean(((approximation.mean - exact.mean) / spread) ** 2))),
        std_error=float(np.sqrt(np.mean((std / spread - 1.0) ** 2))),
        kl_at_exact=marginal_kl(approximation_e, exact_e) if approximation_e else math.nan,
        lml_difference=difference,
        lml=lml,
        lml_at_exact=lml_e,
        nlpd_at_exact=nlpd(y_test, approximation_e.mean, approximation_e.variance + approximation_e.noise_variance)
        if approximation_e
        else math.nan,
        rmse_at_exact=rmse(y_test, approximation_e.mean) if approximation_e else math.nan,
        **densities,
        **errors,
    )


def diagnose(kl: float, lml_difference: float, nlpd_here: float, nlpd_there: float) -> str:
    """In words: first whether the posterior is right, then what is to be said of the hyperparameters.

    `lml_difference` is the exact LML at the approximation's hyperparameters minus that at the exact GP's own, for each
    training point; the NLPDs are the exact GP's at the one and at the other.
    """
    if not kl <= SAME_POSTERIOR:
        return UNFAITHFUL
    if lml_difference > CERTIFIED_GAP:
        return BETTER_OPTIMUM
    if lml_difference < -CERTIFIED_GAP:
        return MISSPECIFIED if nlpd_here < nlpd_there - SAME_PREDICTION else WORSE_OPTIMUM
    return FAITHFUL


def marginal_kl(a: Gaussian, e: Gaussian) -> float:
    """Mean over the points of KL[a ‖ e] between latent marginals."""
    ratio = a.variance / e.variance
    return float(np.mean(0.5 * (ratio - 1.0 - np.log(ratio) + (a.mean - e.mean) ** 2 / e.variance)))


def marginal_wasserstein(a: Gaussian, e: Gaussian) -> float:
    """Mean over the points of the 2-Wasserstein distance between latent marginals."""
    return float(np.mean(np.hypot(a.mean - e.mean, np.sqrt(a.variance) - np.sqrt(e.variance))))


def _joint_kl(approximation: Any, exact: ExactPosterior, X_test: FloatArray) -> float:
    """KL of the joint latent distribution on the first test points, for each point; NaN where it is not to be had."""
    if not hasattr(approximation, "joint"):
        return math.nan
    X = X_test[:JOINT_POINTS]
    floor = 1e-6 * float(exact.kernel.parameters["variance"])  # smooth functions: the covariances are nearly singular
    (m_a, S_a), (m_e, S_e) = approximation.joint(X), exact.joint(X)
    for S in (S_a, S_e):
        S.diagonal().add_(floor)
    try:
        L_a, L_e = torch.linalg.cholesky(S_a), torch.linalg.cholesky(S_e)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return math.nan
    ratio = torch.linalg.solve_triangular(L_e, L_a, upper=False)
    shift = torch.linalg.solve_triangular(L_e, (m_a - m_e)[:, None], upper=False)
    log_ratio = 2.0 * (L_e.diagonal().log().sum() - L_a.diagonal().log().sum())
    return float(0.5 * (ratio.square().sum() + shift.square().sum() - len(X) + log_ratio)) / len(X)


@dataclass(frozen=True)
class _Model:
    """What a run says of its last model."""

    kernel: SquaredExponential
    noise_variance: float
    m: int | None
    elbo: float
    milestone: bool
    predictions: Gaussian


def _last_model(run: RunFolder) -> _Model | None:
    """The last milestone, or what the budget ended with if its likelihood is no lower: M may just have grown then."""
    models = [model for number, point in enumerate(run.points()[0]) if (model := _kept(run, number, point))]
    milestones = [model for model in models if model.milestone]
    if not milestones or models[-1].elbo >= milestones[-1].elbo:
        return models[-1] if models else None
    return milestones[-1]


def _kept(run: RunFolder, number: int, point: dict[str, Any]) -> _Model | None:
    """What there is of a point of the trace, if it has predictions and hyperparameters."""
    path, info = run.path / store.PREDICTIONS / f"{number}.npz", point.get("info", {})
    if not path.exists() or not {"lengthscales", "variance", "noise_variance"} <= info.keys():
        return None
    try:
        kernel, noise = SquaredExponential(info["lengthscales"], info["variance"]), float(info["noise_variance"])
        with np.load(path) as saved:
            mean, variance = saved["mean"], saved["variance"]
        latent = np.maximum(variance - noise, LEAST_VARIANCE * float(info["variance"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    m, elbo = point.get("m"), point.get("elbo")
    return _Model(
        kernel,
        noise,
        None if m is None else int(m),
        -math.inf if elbo is None else float(elbo),
        bool(point.get("milestone")),
        Gaussian(mean, latent, noise),
    )


def _latent(posterior: Any, X: FloatArray) -> Gaussian:
    mean, variance = (np.asarray(part) for part in posterior.predict(X))
    floor = LEAST_VARIANCE * float(posterior.kernel.parameters["variance"])
    return Gaussian(mean, np.maximum(variance, floor), float(posterior.noise_variance))


def _rebuilt(
    spec: dict[str, Any], task: Task, kernel: SquaredExponential, noise_variance: float, m: int | None
) -> Any | None:
    """The method's own posterior at given hyperparameters, if the method can tell."""
    try:
        method = methods.create(spec["method"], spec.get("options"))
    except ValueError:  # a plug-in that is no longer there
        return None
    if not hasattr(method, "at"):
        return None
    try:
        return method.at(task, kernel, noise_variance, m)
    except NumericalError as error:
        logger.info("%s at other hyperparameters: %s", spec["method"], error)
        return None


def _optimum(
    data: datasets.Split, of_gpr: tuple[RunFolder, _Model] | None, memory: int, time_limit: float
) -> tuple[Any, float]:
    """Where the exact GP's own training ends: that of its run if it was done, else it is continued or made here."""
    if of_gpr is None:
        training = ExactTraining(
            SquaredExponential(), data.X_train, data.y_train, memory_limit=memory, time_limit=time_limit
        )
        training.run()
        return training.layout.unpack(training.best_theta)
    run, model = of_gpr
    if run.status() == store.RunStatus.FINISHED:
        return model.kernel, model.noise_variance
    objective = ExactObjective(model.kernel, model.noise_variance, data.X_train, data.y_train)
    optimum = minimise(objective, objective.theta0, time_limit=time_limit)
    return objective.layout.unpack(optimum.theta)
