"""Gaussian process regression: `fit(X, y)`, and nothing to tune."""

from __future__ import annotations

import time
import warnings
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from nearexact.base_estimator import Problem, Regressor
from nearexact.certificate import CERTIFIED_GAP, NEAR_EXACT, Certificate, judge
from nearexact.gp.exact_training import ExactTraining
from nearexact.gp.posterior import SparsePosterior
from nearexact.gp.schedule import SCHEDULE
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stages import Stage, TrainingEnd
from nearexact.gp.tighten import MOST_ITERATIONS, tighten_bounds
from nearexact.gp.training import Training
from nearexact.kernels import Kernel, SquaredExponential
from nearexact.limits import parse_bytes, parse_seconds
from nearexact.progress import progress_display, tightening_display

SAME_DATA = 1e-3  # nats per point by which a bound may differ, on another machine, for data to be the same


class SGPRegressor(Regressor):
    """Sparse Gaussian process regression that trains itself and says how near to the exact GP it is.

    The number of inducing points grows until the model is as good as exact, M comes to 0.8 N, or a limit is reached.
    A fit that a limit ends early gives a ConvergenceWarning that says what is missing.

    Parameters
    ----------
    kernel : Kernel, default SquaredExponential()
        Covariance function, with the values to start from. One lengthscale per input.
    time_limit : float or str, default 600
        Seconds, or text such as "5m"; None for no limit. The best model so far is kept.
    memory_limit : int or str, default None
        Bytes, or text such as "2GB", for what training allocates besides the data; None for half of what is free.
    max_inducing : int, default 10000
        Largest M; at most 10000.
    procedure : {"robust", "paper"}, default "robust"
        "paper" is the published algorithm as it is; "robust" recovers from starts that lead nowhere, and its bound
        never falls as M grows.
    bound : {"elbo", "tight"}, default "elbo"
        The bound on the log marginal likelihood that is maximised: the usual one (Titsias 2009), or the tighter
        collapsed one (Titsias 2025), at some more time for each evaluation. Predictions follow the same formulas.
    device : str, default "auto"
        "cpu", "cuda", …; "auto" takes CUDA where there is one.
    random_state : int, RandomState or None, default None
        Breaks ties between equally good inducing points.
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
    n_features_in_, feature_names_in_ : as in scikit-learn
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        time_limit: float | str | None = 600,
        memory_limit: int | float | str | None = None,
        max_inducing: int = SCHEDULE[-1],
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
        self.procedure = procedure
        self.bound = bound
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs X [N, D] and targets y [N]. Ctrl-C keeps the best model so far, and is then passed on."""
        started = time.perf_counter()
        time_limit, memory_limit = _limits(self.time_limit, self.memory_limit)
        with self._unchanged_by_errors(), progress_display(self.progress, time_limit) as display:
            problem = self._prepare(X, y)

            def after_stage(stage: Stage, _: SparsePosterior) -> str | None:
                elbos = [earlier.objective for earlier in training.history if earlier.complete]
                lower, upper = stage.lower_bound, stage.upper_bound
                verdict = judge(lower, upper, elbos, training.noise_only, stage.n, elbo=stage.objective)
                display.stage(stage, verdict)
                if verdict in NEAR_EXACT:
                    return verdict
                return None if problem.y.any() else "constant target"

            training = Training(
                SquaredExponential() if self.kernel is None else self.kernel,
                problem.X,
                problem.y,
                procedure=self.procedure,
                bound=self.bound,
                max_inducing=self.max_inducing,
                time_limit=time_limit - (time.perf_counter() - started),
                memory_limit=memory_limit,
                seed=int(check_random_state(self.random_state).randint(2**31)),
                on_step=display.step,
                on_stage=after_stage,
            )
            self._run(training, problem)
            if not self.history_[-1].complete:
                display.stage(self.history_[-1], self.certificate_.verdict)
        self._warn_if_cut_short()
        return self

    def certify(
        self, X: Any = None, y: Any = None, *, cg_iterations: int | None = None, time_limit: float | str | None = None
    ) -> Certificate:
        """Proved bounds on the exact log marginal likelihood at the fitted hyperparameters, from the training data.

        The data are at hand after `fit`; after `nearexact.load` they have to be passed. The bounds that came with the
        fit are tightened by conjugate gradients with the exact kernel matrix, then by moments of what the inducing
        points leave unexplained. An iteration takes time of order N², the moments as long as about M/10 of them. The
        iterations end when more would not help, or after `cg_iterations` (default 100; with 0, nothing of order N² is
        done); all of it ends at the `time_limit` (seconds or "5m"). The result is returned, and kept as `certificate_`
        if it is no looser, so that `save` keeps it.
        The verdict "converged" can only come from `fit`, which has seen other M.
        """
        check_is_fitted(self, "_posterior")
        started = time.perf_counter()
        whole = isinstance(cg_iterations, (int, np.integer)) and not isinstance(cg_iterations, bool)
        if cg_iterations is not None and not (whole and cg_iterations >= 0):
            raise ValueError(f"cg_iterations must be a whole number of at least 0, or None, got {cg_iterations!r}")
        seconds = parse_seconds(time_limit)
        problem = self._training_data(X, y)
        objective = SparseObjective(
            self.kernel_,
            self.noise_variance_,
            problem.X,
            problem.y,
            self._posterior.inducing_points,
            memory_limit=self.memory_limit,
        )
        model = objective.factorise(self.kernel_, self.noise_variance_, residuals=True)
        maximised = (model.elbo, model.tight_bound)  # one of them was maximised
        if not any(abs(value - self.elbo_) <= SAME_DATA * len(problem.y) for value in maximised):
            raise ValueError("these are not the data that the model was fitted to: their likelihood differs")
        with tightening_display(self.progress, seconds) as display:
            result = tighten_bounds(
                objective,
                model,
                iterations=MOST_ITERATIONS if cg_iterations is None else int(cg_iterations),
                time_limit=seconds - (time.perf_counter() - started),
                on_iteration=display.iteration,
                on_share=display.share,
            )
        certificate = Certificate.of(
            result.bounds,
            self._verdict(result.bounds, problem.y),
            iterations=result.iterations,
            seconds=time.perf_counter() - started,
        )
        if not certificate.upper - certificate.lower > self.certificate_.upper - self.certificate_.lower:
            self.certificate_ = certificate
        return certificate

    def _training_data(self, X: Any, y: Any) -> Problem:
        """The data that the model was fitted to: those passed, or those it holds."""
        if (X is None) != (y is None):
            raise ValueError("X and y must be passed both or not at all, got one of them")
        if X is not None:
            data = self._new_inputs_and_targets(X, y)
            problem = Problem.of(*data, self._scaling_X, self._scaling_y, self._posterior.inducing_points.device)
        elif self._problem is not None:
            problem = self._problem
        else:
            raise ValueError("a loaded model does not hold its training data: pass X and y")
        if len(problem.y) != self.certificate_.n:
            raise ValueError(f"the model was fitted to {self.certificate_.n} rows, got {len(problem.y)} others")
        return problem

    def _warn_if_cut_short(self) -> None:
        limit = {
            TrainingEnd.TIME_LIMIT: f"time_limit={self.time_limit!r}",
            TrainingEnd.MEMORY_LIMIT: "half of the free memory (memory_limit=None)"
            if self.memory_limit is None
            else f"memory_limit={self.memory_limit!r}",
            TrainingEnd.MAX_INDUCING: f"max_inducing={self.max_inducing}",
        }.get(self.history_[-1].ended)  # type: ignore[call-overload]
        if limit is not None and self.certificate_.verdict not in NEAR_EXACT:
            warnings.warn(
                f"{limit} ended the fit at {len(self.inducing_points_)} inducing points, before the model was near to"
                f" the exact GP. {self.certificate_}; {CERTIFIED_GAP} would be certified. Raise the limit.",
                ConvergenceWarning,
                stacklevel=3,
            )


class GPRegressor(Regressor):
    """Exact Gaussian process regression: time grows with N³, memory with N².

    Parameters, attributes and methods are those of SGPRegressor. The bounds coincide: both are the log marginal
    likelihood. `inducing_points_` are all rows. Data that do not fit into memory are refused before anything starts.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        time_limit: float | str | None = 600,
        memory_limit: int | float | str | None = None,
        device: str = "auto",
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs X [N, D] and targets y [N]. Ctrl-C keeps the best model so far, and is then passed on."""
        started = time.perf_counter()
        time_limit, memory_limit = _limits(self.time_limit, self.memory_limit)
        with self._unchanged_by_errors(), progress_display(self.progress, time_limit) as display:
            problem = self._prepare(X, y)
            training = ExactTraining(
                SquaredExponential() if self.kernel is None else self.kernel,
                problem.X,
                problem.y,
                time_limit=time_limit - (time.perf_counter() - started),
                memory_limit=memory_limit,
                on_step=display.step,
                on_stage=lambda stage, _: display.stage(stage),
            )
            self._run(training, problem)
        if self.history_[-1].ended in (TrainingEnd.TIME_LIMIT, TrainingEnd.MAX_ITERATIONS):
            in_time = self.history_[-1].ended != TrainingEnd.TIME_LIMIT
            limit = "max iterations" if in_time else f"time_limit={self.time_limit!r}"
            warnings.warn(
                f"{limit} ended the fit before the optimiser had converged: the log marginal"
                f" likelihood is {self.elbo_:.6g} so far. Raise the limit to let it finish.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def certify(
        self, X: Any = None, y: Any = None, *, cg_iterations: int | None = None, time_limit: float | str | None = None
    ) -> Certificate:
        """The exact GP needs no bounds: its certificate says so. The arguments are those of SGPRegressor.certify."""
        check_is_fitted(self, "_posterior")
        return self.certificate_


def _limits(time_limit: float | str | None, memory_limit: int | float | str | None) -> tuple[float, int | None]:
    return parse_seconds(time_limit), None if memory_limit is None else parse_bytes(memory_limit)
