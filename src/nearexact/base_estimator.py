"""What both estimators share, with scikit-learn's interface: data are checked on the way in, predictions come out.

Data are standardised on the way in and predictions come back in the user's units; hyperparameters and bounds are those
of the standardised problem.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nearexact import persistence
from nearexact.certificate import Certificate, Verdict, confirm, judge
from nearexact.evidence import Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.exact_training import ExactTraining
from nearexact.gp.memory import row_chunks
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.stages import Stage
from nearexact.gp.training import Training
from nearexact.kernels import Kernel
from nearexact.noise_only import noise_only_likelihood
from nearexact.notebook import estimator_html
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

PREDICTED_ROWS = 2**16  # standardised and predicted at once
LARGEST_INPUT = 1e150  # standard deviations; its square is still finite


@dataclass(frozen=True, eq=False)
class Problem:
    """Training data, standardised, as tensors."""

    X: torch.Tensor
    y: torch.Tensor
    scaling_X: Scaling
    scaling_y: Scaling

    @staticmethod
    def of(X: FloatArray, y: FloatArray, scaling_X: Scaling, scaling_y: Scaling, device: torch.device) -> Problem:
        targets = torch.tensor(scaling_y.apply(y), device=device)
        return Problem(_standardised(X, scaling_X).to(device), targets, scaling_X, scaling_y)


class Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
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
    method_: str  # "cholesky" or "sparse"
    metadata_: dict[str, Any]  # JSON-serialisable values that other layers keep with the model, under keys of their own
    _posterior: SparsePosterior | ExactPosterior
    _scaling_X: Scaling
    _scaling_y: Scaling
    _problem: Problem | None  # not in a loaded model

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

    def _prepare(self, X: Any, y: Any) -> Problem:
        """Checked and standardised training data on the device."""
        device = _device(self.device)
        inputs, targets = validate_data(
            self, _as_array(X), _as_array(y), dtype=np.float64, order="C", y_numeric=True, ensure_min_samples=2
        )
        targets = targets.astype(np.float64)
        return Problem.of(inputs, targets, Scaling.of(inputs), Scaling.of(targets), device)

    def _run(self, training: Training | ExactTraining, problem: Problem) -> None:
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

    def _adopt(self, training: Training | ExactTraining, problem: Problem) -> None:
        posterior, (elbo, upper) = persistence.contiguous(training.posterior()), training.bounds()
        bounds = training.likelihood_bounds()
        self._posterior, self._problem = posterior, problem
        self._scaling_X, self._scaling_y = problem.scaling_X, problem.scaling_y
        self.history_ = training.history
        self.kernel_, self.noise_variance_ = posterior.kernel, posterior.noise_variance
        self.inducing_points_ = problem.scaling_X.undo(posterior.inducing_points.cpu().numpy())
        self.elbo_, self.upper_bound_ = elbo, upper
        self.method_ = "sparse" if isinstance(posterior, SparsePosterior) else "cholesky"
        evidence = training.evidence()
        self.certificate_ = Certificate.of(bounds, self._verdict(bounds, problem.y, evidence), evidence)
        self.metadata_ = {}  # what was kept with an earlier fit belongs to other data

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """A fit that fails leaves this object as it was."""
        before = self.__dict__.copy()
        try:
            yield
        except Exception:
            self.__dict__ = before
            raise

    def _verdict(self, bounds: LikelihoodBounds, y: torch.Tensor, evidence: Evidence | None) -> Verdict:
        return verdict_on(bounds, self.history_, self.elbo_, y, evidence, isinstance(self._posterior, ExactPosterior))

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


def verdict_on(
    bounds: LikelihoodBounds,
    history: Sequence[Stage],
    objective: float,
    y: torch.Tensor,
    evidence: Evidence | None,
    is_exact: bool,
) -> Verdict:
    """The verdict on a model: what is proved at its θ, and what speaks for this θ."""
    steps = [stage.objective for stage in history if stage.complete]
    verdict = judge(bounds.lower, bounds.upper, steps, noise_only_likelihood(y), len(y), elbo=objective)
    verdict = confirm(verdict, bounds.lower, len(y), evidence)
    return "exact" if verdict == "certified" and is_exact else verdict


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
    scaled = scaling.apply(inputs)
    return torch.from_numpy(np.clip(scaled, -LARGEST_INPUT, LARGEST_INPUT, out=scaled))


def _as_array(values: Any) -> Any:
    """Tensors as arrays; scikit-learn takes care of everything else."""
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
