"""Gaussian process regression: `fit(X, y)`, and nothing to tune."""

from __future__ import annotations

import time
import warnings
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from nearexact.base_estimator import Problem, Regressor, verdict_on
from nearexact.certificate import CERTIFIED_GAP, NEAR_EXACT, Certificate
from nearexact.evidence import Evidence
from nearexact.gp.exact import exact_fits
from nearexact.gp.exact_training import ExactTraining
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.schedule import SCHEDULE
from nearexact.gp.search import Search
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.stages import Stage, TrainingEnd
from nearexact.gp.tighten import MOST_ITERATIONS, tighten_bounds
from nearexact.gp.training import SEARCH_SHARE, Training
from nearexact.kernels import Kernel, SquaredExponential
from nearexact.kernels.base import as_kernel
from nearexact.limits import memory_budget, parse_bytes, parse_seconds
from nearexact.progress import Display, progress_display, tightening_display
from nearexact.typing import MemoryLimit, TimeLimit

SAME_DATA = 1e-3  # nats per point by which a bound may differ, on another machine, for data to be the same
LONGEST_SEARCH = 60.0  # seconds, by `certify`
METHODS = ("auto", "cholesky", "sparse")


class TrainedRegressor(Regressor):
    """What both estimators do alike: train within limits, say what is missing, certify."""

    max_inducing: int

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs X [N, D] and targets y [N]. Ctrl-C keeps the best model so far, and is then passed on."""
        started = time.perf_counter()
        time_limit = parse_seconds(self.time_limit)
        memory_limit = None if self.memory_limit is None else parse_bytes(self.memory_limit)
        with self._unchanged_by_errors(), progress_display(self.progress, time_limit) as display:
            problem = self._prepare(X, y)
            seconds = time_limit - (time.perf_counter() - started)
            self._run(self._training(problem, seconds, memory_limit, display), problem)
            if not self.history_[-1].complete:
                display.stage(self.history_[-1], self.certificate_.verdict)
        self._warn_if_cut_short()
        return self

    def _training(
        self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display
    ) -> Training | ExactTraining:
        raise TypeError(f"{type(self).__name__} must define _training")

    def _sparse_training(
        self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display, **options: Any
    ) -> Training:
        """M grows until the model is as good as exact, or no more is to be learnt."""

        def after_stage(stage: Stage, _: SparsePosterior) -> str | None:
            bounds, history = training.likelihood_bounds(), training.history
            verdict = verdict_on(bounds, history, training.bounds()[0], problem.y, training.evidence(), is_exact=False)
            display.stage(stage, verdict)
            if training.procedure == "paper":
                return None
            if verdict in NEAR_EXACT:
                return verdict
            if verdict == "no better than noise" and training.searched_in_vain():
                return verdict
            return None if problem.y.any() else "constant target"

        training = Training(
            SquaredExponential() if self.kernel is None else self.kernel,
            problem.X,
            problem.y,
            max_inducing=self.max_inducing,
            time_limit=time_limit,
            memory_limit=memory_limit,
            seed=self._seed(),
            on_step=display.step,
            on_stage=after_stage,
            on_round=display.round,
            **options,
        )
        return training

    def _exact_training(
        self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display
    ) -> ExactTraining:
        return ExactTraining(
            SquaredExponential() if self.kernel is None else self.kernel,
            problem.X,
            problem.y,
            time_limit=time_limit,
            memory_limit=memory_limit,
            seed=self._seed(),
            on_step=display.step,
            on_stage=lambda stage, _: display.stage(stage),
            on_round=display.round,
        )

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31))

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
        if isinstance(self._posterior, ExactPosterior):
            return self.certificate_  # an exact GP needs no bounds
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
        evidence = self.certificate_.evidence or self._search(problem, seconds - (time.perf_counter() - started))
        certificate = Certificate.of(
            result.bounds,
            self._verdict(result.bounds, problem.y, evidence),
            evidence,
            iterations=result.iterations,
            seconds=time.perf_counter() - started,
        )
        if not certificate.upper - certificate.lower > self.certificate_.upper - self.certificate_.lower:
            self.certificate_ = certificate
        return certificate

    def _search(self, problem: Problem, seconds: float) -> Evidence | None:
        """Evidence for the θ of a model that was saved without any."""
        search = Search(
            self.kernel_,
            problem.X,
            problem.y,
            time_limit=min(SEARCH_SHARE * seconds, LONGEST_SEARCH),
            memory=memory_budget(self.memory_limit, problem.X.device),
            seed=0,
        )
        search.run()
        return search.evidence(search.layout.pack(self.kernel_, self.noise_variance_), search.timer.left())

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
        ended = self.history_[-1].ended
        limits = {
            TrainingEnd.TIME_LIMIT: f"time_limit={self.time_limit!r}",
            TrainingEnd.MEMORY_LIMIT: "half of the free memory (memory_limit=None)"
            if self.memory_limit is None
            else f"memory_limit={self.memory_limit!r}",
            TrainingEnd.MAX_INDUCING: f"max_inducing={self.max_inducing}",
            TrainingEnd.MAX_ITERATIONS: "the largest number of iterations",
        }
        limit = next((words for end, words in limits.items() if end == ended), None)
        if limit is None or self.certificate_.verdict in NEAR_EXACT:
            return
        if isinstance(self._posterior, ExactPosterior):
            message = (
                f"{limit} ended the fit before the optimiser had converged: the log marginal likelihood is"
                f" {self.elbo_:.6g} so far. Raise the limit to let it finish."
            )
        else:
            message = (
                f"{limit} ended the fit at {len(self.inducing_points_)} inducing points, before the model was near to"
                f" the exact GP. {self.certificate_}. A gap of {CERTIFIED_GAP} would be certified. Raise the limit."
            )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)


class SGPRegressor(TrainedRegressor):
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
    search_ : list of Round, the subsets on which hyperparameters were searched for
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

    def _training(self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display) -> Training:
        options = {"procedure": self.procedure, "bound": self.bound}
        return self._sparse_training(problem, time_limit, memory_limit, display, **options)


class GPRegressor(TrainedRegressor):
    """Gaussian process regression: the exact GP where the limits allow it, else the sparse one that comes nearest.

    Parameters
    ----------
    method : {"auto", "cholesky", "sparse"}, default "auto"
        "cholesky" is the exact GP: time grows with N³, memory with N². "sparse" is that of SGPRegressor. "auto" takes
        the exact one if its predicted time and memory fit the limits.

    The other parameters, attributes and methods are those of SGPRegressor. Of an exact GP both bounds are the log
    marginal likelihood, and `inducing_points_` are all rows. `method_` is what was done.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        method: str = "auto",
        time_limit: TimeLimit = 600,
        memory_limit: MemoryLimit = None,
        max_inducing: int = SCHEDULE[-1],
        device: str = "auto",
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.method = method
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.max_inducing = max_inducing
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def _training(
        self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display
    ) -> Training | ExactTraining:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        kernel = as_kernel(SquaredExponential() if self.kernel is None else self.kernel, problem.X.shape[1])
        exact = self.method == "cholesky" or (
            self.method == "auto" and exact_fits(kernel, problem.X, problem.y, time_limit, memory_limit)
        )
        train = self._exact_training if exact else self._sparse_training
        return train(problem, time_limit, memory_limit, display)
