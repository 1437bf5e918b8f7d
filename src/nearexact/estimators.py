"""Gaussian process regression with scikit-learn's face: `fit(X, y)`, and nothing to tune.

Data are standardised on the way in and predictions come back in the user's units; hyperparameters and bounds are those
of the standardised problem.
"""

from __future__ import annotations

import math
import os
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nearexact import persistence
from nearexact.certificate import CERTIFIED_GAP, NEAR_EXACT, Certificate, Verdict, judge
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.bracket import MOST_ITERATIONS, bracket
from nearexact.gp.chunks import row_chunks
from nearexact.gp.exact import ExactPosterior
from nearexact.gp.exact_training import ExactTraining
from nearexact.gp.factorisation import SparsePosterior
from nearexact.gp.record import TIME_LIMIT, Stage
from nearexact.gp.schedule import SCHEDULE
from nearexact.gp.sparse import SparseObjective
from nearexact.gp.starts import noise_only_likelihood
from nearexact.gp.training import Training
from nearexact.kernels import Kernel, SquaredExponential
from nearexact.kernels.base import FloatArray
from nearexact.limits import parse_bytes, parse_seconds
from nearexact.notebook import estimator_html
from nearexact.progress import bracket_display, progress_display
from nearexact.scaling import Scaling

PREDICTED_ROWS = 2**16  # standardised and predicted at once
SAME_DATA = 1e-3  # nats per point by which a bound may differ, on another machine, for data to be the same
LARGEST_INPUT = 1e150  # standard deviations; its square is still finite


@dataclass(frozen=True, eq=False)
class _Problem:
    """Training data, standardised, as tensors."""

    X: torch.Tensor
    y: torch.Tensor
    scaling_X: Scaling
    scaling_y: Scaling

    @staticmethod
    def of(X: FloatArray, y: FloatArray, scaling_X: Scaling, scaling_y: Scaling, device: torch.device) -> _Problem:
        targets = torch.tensor(scaling_y.apply(y), device=device)
        return _Problem(_standardised(X, scaling_X).to(device), targets, scaling_X, scaling_y)


class _Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the sparse and the exact estimator share: data in, predictions out."""

    kernel: Kernel | None
    time_limit: float | str | None
    memory_limit: int | float | str | None
    device: str
    random_state: Any
    progress: bool
    kernel_: Kernel
    noise_variance_: float
    inducing_points_: FloatArray
    elbo_: float
    upper_bound_: float
    certificate_: Certificate
    history_: list[Stage]
    n_features_in_: int
    recipe_: dict[str, Any]  # only of models that were fitted to a file; see nearexact.tables
    _posterior: SparsePosterior | ExactPosterior
    _scaling_X: Scaling
    _scaling_y: Scaling
    _problem: _Problem | None  # not in a loaded model

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = ..., return_cov: Literal[False] = ..., noise: bool = ...
    ) -> FloatArray: ...
    @overload
    def predict(
        self, X: Any, return_std: bool = ..., return_cov: bool = ..., noise: bool = ...
    ) -> FloatArray | tuple[FloatArray, FloatArray]: ...
    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, noise: bool = True
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Predictive mean, and with it the standard deviation or covariance, at the rows of X.

        They are those of a new observation; with `noise=False`, those of the function without noise.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other, got both")
        inputs = self._new_inputs(X)
        if return_cov:
            mean, covariance = (
                part.cpu().numpy() for part in self._posterior.joint(_standardised(inputs, self._scaling_X))
            )
            if noise:
                covariance[np.diag_indices_from(covariance)] += self.noise_variance_
            return self._scaling_y.undo(mean), covariance * self._scaling_y.scale**2
        if return_std:
            return self._mean_and_std(inputs, noise)
        mean = np.empty(len(inputs))
        for rows in row_chunks(len(inputs), PREDICTED_ROWS):
            mean[rows] = self._posterior.mean(_standardised(inputs[rows], self._scaling_X)).cpu().numpy()
        return self._scaling_y.undo(mean)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> FloatArray:
        """Draws of new observations, noise included, at the rows of X: [rows, n_samples]."""
        inputs = _standardised(self._new_inputs(X), self._scaling_X)
        if not isinstance(n_samples, (int, np.integer)) or n_samples < 1:
            raise ValueError(f"n_samples must be a whole number of at least 1, got {n_samples!r}")
        random = check_random_state(random_state)
        draws = self._posterior.sample(inputs, int(n_samples), int(random.randint(2**31))).T.cpu().numpy()
        draws = draws + math.sqrt(self.noise_variance_) * random.standard_normal(draws.shape)
        return self._scaling_y.undo(draws)

    def log_predictive_density(self, X: Any, y: Any) -> FloatArray:
        """Log density of each target y under its own predictive distribution, in nats and in the user's units."""
        inputs, targets = self._new_inputs_and_targets(X, y)
        mean, std = self._mean_and_std(inputs, noise=True)
        error = (targets - mean) / std
        density: FloatArray = -0.5 * (math.log(2.0 * math.pi) + error**2) - np.log(std)
        return density

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, from which `nearexact.load` makes it again. Data are not in it."""
        check_is_fitted(self, "_posterior")
        persistence.save(self, path)

    def _repr_html_inner(self) -> str:
        """What notebooks show: scikit-learn's diagram, and before it what was learnt."""
        diagram: str = super()._repr_html_inner()
        return f"{estimator_html(self)}{diagram}" if hasattr(self, "certificate_") else diagram

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        return {**bundle, "text/html": self._repr_html_inner()} if "text/html" in bundle else bundle

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _prepare(self, X: Any, y: Any) -> _Problem:
        """Checked and standardised training data on the device."""
        device = _device(self.device)
        inputs, targets = validate_data(
            self, _as_array(X), _as_array(y), dtype=np.float64, order="C", y_numeric=True, ensure_min_samples=2
        )
        targets = targets.astype(np.float64)
        return _Problem.of(inputs, targets, Scaling.of(inputs), Scaling.of(targets), device)

    def _run(self, training: Training | ExactTraining, problem: _Problem) -> None:
        """Train, and become the best model, also after Ctrl-C, which is then passed on."""
        pressed: KeyboardInterrupt | None = None
        try:
            training.run()
        except KeyboardInterrupt as interrupt:
            pressed = interrupt
        for last_try in (False, True):  # Ctrl-C may also come while the model is put together
            try:
                if pressed is not None:
                    traceback.clear_frames(pressed.__traceback__)  # they hold the buffers of what was under way
                    training.interrupted()
                self._adopt(training, problem)
                break
            except KeyboardInterrupt as interrupt:
                pressed = interrupt
                if last_try:
                    break
        if pressed is not None:
            raise pressed

    def _adopt(self, training: Training | ExactTraining, problem: _Problem) -> None:
        posterior, (elbo, upper) = persistence.contiguous(training.posterior()), training.bounds()
        bounds = training.likelihood_bounds()
        self._posterior, self._problem = posterior, problem
        self._scaling_X, self._scaling_y = problem.scaling_X, problem.scaling_y
        self.history_ = training.history
        self.kernel_, self.noise_variance_ = posterior.kernel, posterior.noise_variance
        self.inducing_points_ = problem.scaling_X.undo(posterior.inducing_points.cpu().numpy())
        self.elbo_, self.upper_bound_ = elbo, upper
        self.certificate_ = Certificate.of(bounds, self._verdict(bounds, problem.y))
        self.__dict__.pop("recipe_", None)  # that of other data

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """A fit that fails leaves this object as it was."""
        before = self.__dict__.copy()
        try:
            yield
        except Exception:
            self.__dict__ = before
            raise

    def _verdict(self, bounds: LikelihoodBounds, y: torch.Tensor) -> Verdict:
        elbos = [stage.elbo for stage in self.history_ if stage.complete]
        return judge(bounds.lower, bounds.upper, elbos, noise_only_likelihood(y), len(y), elbo=self.elbo_)

    def _new_inputs(self, X: Any) -> FloatArray:
        check_is_fitted(self, "_posterior")
        inputs: FloatArray = validate_data(self, _as_array(X), dtype=np.float64, reset=False)
        return inputs

    def _new_inputs_and_targets(self, X: Any, y: Any) -> tuple[FloatArray, FloatArray]:
        check_is_fitted(self, "_posterior")
        inputs, targets = validate_data(self, _as_array(X), _as_array(y), dtype=np.float64, y_numeric=True, reset=False)
        return inputs, targets.astype(np.float64)

    def _mean_and_std(self, inputs: FloatArray, noise: bool) -> tuple[FloatArray, FloatArray]:
        mean, variance = np.empty(len(inputs)), np.empty(len(inputs))
        for rows in row_chunks(len(inputs), PREDICTED_ROWS):
            parts = self._posterior.predict(_standardised(inputs[rows], self._scaling_X))
            mean[rows], variance[rows] = (part.cpu().numpy() for part in parts)
        std = np.sqrt(variance + self.noise_variance_ if noise else variance)
        return self._scaling_y.undo(mean), std * self._scaling_y.scale


class SGPRegressor(_Regressor):
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
        Where M stops to grow; at most 10000.
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

            def after_stage(stage: Stage, _: SparsePosterior) -> None:
                elbos = [earlier.elbo for earlier in training.history if earlier.complete]
                lower, upper = stage.lower_bound, stage.upper_bound
                verdict = judge(lower, upper, elbos, training.noise_only, stage.n, elbo=stage.elbo)
                display.stage(stage, verdict)
                if verdict in NEAR_EXACT:
                    raise StopIteration(verdict)
                if not problem.y.any():
                    raise StopIteration("constant target")

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
        began = time.perf_counter()
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
        known = (model.elbo, model.tight_bound)  # one of them was maximised
        if not any(abs(value - self.elbo_) <= SAME_DATA * len(problem.y) for value in known):
            raise ValueError("these are not the data that the model was fitted to: their likelihood differs")
        with bracket_display(self.progress, seconds) as display:
            result = bracket(
                objective,
                model,
                iterations=MOST_ITERATIONS if cg_iterations is None else int(cg_iterations),
                time_limit=seconds - (time.perf_counter() - began),
                on_iteration=display.iteration,
                on_share=display.share,
            )
        certificate = Certificate.of(
            result.bounds,
            self._verdict(result.bounds, problem.y),
            iterations=result.iterations,
            seconds=time.perf_counter() - began,
        )
        if not certificate.upper - certificate.lower > self.certificate_.upper - self.certificate_.lower:
            self.certificate_ = certificate
        return certificate

    def _training_data(self, X: Any, y: Any) -> _Problem:
        """The data that the model was fitted to: those passed, or those it holds."""
        if (X is None) != (y is None):
            raise ValueError("X and y must be passed both or not at all, got one of them")
        if X is not None:
            data = self._new_inputs_and_targets(X, y)
            problem = _Problem.of(*data, self._scaling_X, self._scaling_y, self._posterior.inducing_points.device)
        elif self._problem is not None:
            problem = self._problem
        else:
            raise ValueError("a loaded model does not hold its training data: pass X and y")
        if len(problem.y) != self.certificate_.n:
            raise ValueError(f"the model was fitted to {self.certificate_.n} rows, got {len(problem.y)} others")
        return problem

    def _warn_if_cut_short(self) -> None:
        limit = {
            "time limit": f"time_limit={self.time_limit!r}",
            "memory limit": "half of the free memory (memory_limit=None)"
            if self.memory_limit is None
            else f"memory_limit={self.memory_limit!r}",
            "max_inducing": f"max_inducing={self.max_inducing}",
        }.get(self.history_[-1].ended)
        if limit is not None and self.certificate_.verdict not in NEAR_EXACT:
            warnings.warn(
                f"{limit} ended the fit at {len(self.inducing_points_)} inducing points, before the model was near to"
                f" the exact GP. {self.certificate_}; {CERTIFIED_GAP} would be certified. Raise the limit.",
                ConvergenceWarning,
                stacklevel=3,
            )


class GPRegressor(_Regressor):
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
        if self.history_[-1].ended in (TIME_LIMIT, "max iterations"):
            limit = f"time_limit={self.time_limit!r}" if self.history_[-1].ended == TIME_LIMIT else "max iterations"
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


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f'device must be "auto" or a device that torch has here, got {name!r}: {error}') from error
    return device


def _standardised(inputs: FloatArray, scaling: Scaling) -> torch.Tensor:
    return torch.from_numpy(np.clip(scaling.apply(inputs), -LARGEST_INPUT, LARGEST_INPUT))


def _as_array(values: Any) -> Any:
    """Tensors as arrays; scikit-learn takes care of everything else."""
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
