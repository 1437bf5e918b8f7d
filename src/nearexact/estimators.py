"""Gaussian process regression: `fit(X, y)`, and nothing to tune."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from sklearn.utils import check_random_state

from nearexact.base_estimator import Regressor
from nearexact.gp.affordable import best_method
from nearexact.gp.exact_training import ExactTraining
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.rows import LocalRows
from nearexact.gp.schedule import SCHEDULE
from nearexact.gp.stages import Stage
from nearexact.gp.training import Training
from nearexact.kernels import Kernel
from nearexact.kernels.base import as_kernel
from nearexact.kernels.names import as_named
from nearexact.limits import memory_budget
from nearexact.model_verdict import reason_to_end, verdict_so_far
from nearexact.problem import Problem
from nearexact.progress import Display
from nearexact.typing import MemoryLimit, NoiseBounds, TimeLimit

GATHERED_SHARE = 0.1  # of the memory limit, for rows of a cluster to be brought here
METHODS = ("auto", "cholesky", "iterative", "sparse")


class SGPRegressor(Regressor):
    """Sparse Gaussian process regression that trains itself and says how near to the exact GP it is.

    Inducing points become more until the model is as good as exact, all rows are among them, or a limit is reached.
    A fit that a limit ends early gives a ConvergenceWarning that says what is missing.

    Parameters
    ----------
    kernel : Kernel or str, default SquaredExponential()
        Covariance function, with the values to start from, or its name: "matern52", "se+linear", … One lengthscale per
        input. `with_bounds` of a kernel bounds its parameters, or fixes them.
    time_limit : float or str, default 600
        Seconds, or text such as "5m"; None for no limit. The best model so far is kept.
    memory_limit : int or str, default None
        Bytes, or text such as "2GB", for what training allocates besides the data; None for half of what is free.
    max_inducing : int, default 10000
        Largest M; at most 10000.
    noise_bounds : (float, float) or float, default None
        Between which values the noise variance stays, on the standardised scale; a number fixes it there.
    procedure : {"robust", "paper"}, default "robust"
        "paper" is the published algorithm as it is; "robust" recovers from starts that lead nowhere, and its bound
        never falls as M grows.
    bound : {"elbo", "tight"}, default "elbo"
        The bound on the log marginal likelihood that is maximised: the usual one (Titsias 2009), or the tighter
        collapsed one (Titsias 2025), at some more time for each evaluation. Predictions follow the same formulas.
    device : str, default "auto"
        "cpu", "cuda", …; "auto" takes CUDA where there is one.
    random_state : int, RandomState or None, default None
        Seed of the search for hyperparameters (its subsets and random starts), of ties between inducing points, and of
        random probes.
    progress : bool, default False
        Show M, bounds, gap and time while fitting.

    Attributes
    ----------
    kernel_, noise_variance_ : hyperparameters on the standardised scale
    inducing_points_ : ndarray [M, D] in the user's units
    elbo_ : the bound that was maximised, in nats, of the standardised data
    upper_bound_ : upper bound on their log marginal likelihood, in nats
    certificate_ : Certificate, the best bounds that are known and what they amount to; `certify` tightens them
    history_ : list of Stage, one for each M
    search_ : list of Round, the subsets on which hyperparameters were searched for
    n_features_in_, feature_names_in_ : as in scikit-learn
    """

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        *,
        time_limit: float | str | None = 600,
        memory_limit: int | float | str | None = None,
        max_inducing: int = SCHEDULE[-1],
        noise_bounds: NoiseBounds = None,
        procedure: str = "robust",
        bound: str = "elbo",
        device: str = "auto",
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.max_inducing = max_inducing
        self.noise_bounds = noise_bounds
        self.procedure = procedure
        self.bound = bound
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def _training(self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display) -> Training:
        options = {"procedure": self.procedure, "bound": self.bound}
        return sparse_training(self, problem, time_limit, memory_limit, display, **options)


class GPRegressor(Regressor):
    """Gaussian process regression: the exact GP where the limits allow it, else the sparse one that comes nearest.

    Parameters
    ----------
    method : {"auto", "cholesky", "iterative", "sparse"}, default "auto"
        "cholesky" is the exact GP: time grows with N³, memory with N². "iterative" is the exact GP by conjugate
        gradients: time grows with N², and memory with N. "sparse" is that of SGPRegressor. "auto" takes the first of
        these whose predicted time and memory fit the limits; after conjugate gradients it takes one Cholesky factor at
        the hyperparameters that were found, where that fits too. Where there is time for such a factor only, the
        hyperparameters are those of a subset of the rows.

    The other parameters, attributes and methods are those of SGPRegressor. Of an exact GP by Cholesky both bounds are
    the log marginal likelihood, and `inducing_points_` are all rows. By conjugate gradients the log marginal likelihood
    is estimated: `elbo_` is the estimate, `certificate_` has its standard error next to proved bounds, and
    `inducing_points_` are those of the preconditioner. The mean is then the exact GP's, and so are joint covariances
    (`return_cov`, `sample_y`); standard deviations are extrapolated from nearest rows, and may be off by several per
    cent where inputs are many and the noise is little. `method_` is how the model predicts.
    """

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        *,
        method: str = "auto",
        time_limit: TimeLimit = 600,
        memory_limit: MemoryLimit = None,
        max_inducing: int = SCHEDULE[-1],
        noise_bounds: NoiseBounds = None,
        device: str = "auto",
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.method = method
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.max_inducing = max_inducing
        self.noise_bounds = noise_bounds
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def _training(
        self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display
    ) -> Training | ExactTraining | IterativeTraining:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        method = self.method
        whole = problem if method == "sparse" else gathered(problem, memory_limit)  # all rows, where they fit here
        if whole is None and method != "auto":
            raise ValueError(f'method={method!r} needs all rows here, where they do not fit: take "sparse"')
        if whole is None:
            method = "sparse"
        elif method == "auto":
            kernel, started = as_kernel(as_named(self.kernel), problem.data.inputs), time.perf_counter()
            method = best_method(kernel, whole.X, whole.y, time_limit, memory_limit)
            time_limit -= time.perf_counter() - started
        if method == "sparse":
            return sparse_training(self, problem, time_limit, memory_limit, display)
        assert whole is not None
        problem = whole
        if method == "cholesky":
            return exact_training(self, problem, time_limit, memory_limit, display)
        factorises = self.method == "auto"
        return iterative_training(self, problem, time_limit, memory_limit, display, factorises=factorises)


def gathered(problem: Problem, memory_limit: int | None) -> Problem | None:
    """The problem with all rows here; None where that would take too much of the memory."""
    data = problem.data
    if isinstance(data, LocalRows):
        return problem
    if 8 * data.n * (data.inputs + 1) > GATHERED_SHARE * memory_budget(memory_limit, data.device):
        return None
    return replace(problem, data=data.gathered())


def sparse_training(
    estimator: Regressor,
    problem: Problem,
    time_limit: float,
    memory_limit: int | None,
    display: Display,
    **options: Any,
) -> Training:
    """M grows until the model is as good as exact, or no more is to be learnt."""

    def after_stage(stage: Stage, _: SparsePosterior) -> str | None:
        verdict = verdict_so_far(training, training.evidence())
        display.stage(stage, verdict)
        return None if training.procedure == "paper" else reason_to_end(training, verdict)

    training = Training(
        as_named(estimator.kernel),
        problem.data,
        None,
        max_inducing=estimator.max_inducing,
        time_limit=time_limit,
        memory_limit=memory_limit,
        start=problem.start,
        numerics=estimator._numerics(),
        seed=_seed(estimator),
        on_step=display.step,
        on_stage=after_stage,
        on_round=display.round,
        **options,
    )
    return training


def exact_training(
    estimator: Regressor, problem: Problem, time_limit: float, memory_limit: int | None, display: Display
) -> ExactTraining:
    return ExactTraining(
        as_named(estimator.kernel),
        problem.X,
        problem.y,
        time_limit=time_limit,
        memory_limit=memory_limit,
        start=problem.start,
        row_noise=problem.row_noise,
        numerics=estimator._numerics(),
        seed=_seed(estimator),
        on_step=display.step,
        on_stage=lambda stage, _: display.stage(stage),
        on_round=display.round,
    )


def iterative_training(
    estimator: Regressor,
    problem: Problem,
    time_limit: float,
    memory_limit: int | None,
    display: Display,
    *,
    factorises: bool,
) -> IterativeTraining:
    return IterativeTraining(
        as_named(estimator.kernel),
        problem.X,
        problem.y,
        max_inducing=estimator.max_inducing,
        factorises=factorises,
        time_limit=time_limit,
        memory_limit=memory_limit,
        seed=_seed(estimator),
        start=problem.start,
        row_noise=problem.row_noise,
        numerics=estimator._numerics(),
        on_step=display.step,
        on_stage=lambda stage, _: display.stage(stage),
        on_round=display.round,
    )


def _seed(estimator: Regressor) -> int:
    return int(check_random_state(estimator.random_state).randint(2**31))
