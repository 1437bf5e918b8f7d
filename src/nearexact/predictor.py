"""What a fitted Gaussian process answers, with scikit-learn's interface: predictions in the user's units."""

from __future__ import annotations

import math
import os
from typing import Any, Literal, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nearexact.certifying_predictions import of_target
from nearexact.gp.function_draws import draw_functions
from nearexact.gp.iterative_posterior import Posterior
from nearexact.gp.memory import row_chunks
from nearexact.gp.prediction_gradients import prediction_gradients
from nearexact.kernels import Kernel
from nearexact.known_noise import KnownNoise
from nearexact.onnx_export import save_onnx
from nearexact.problem import as_array, is_dask_collection, standardised, target_checks
from nearexact.scaling import Scaling
from nearexact.torch_posterior import TorchPosterior
from nearexact.typing import FloatArray
from nearexact.validation import table_hint

PREDICTED_ROWS = 2**16  # standardised and predicted at once
JOINT_ROWS = 2048  # up to which draws have the exact joint covariance


class Predictor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A posterior on the standardised scale, and the scalings to and from it."""

    kernel_: Kernel
    noise_variance_: float
    _posterior: Posterior
    _scaling_X: Scaling
    _scaling_y: Scaling
    _weight_unit: float  # the `sample_weight` of a new observation

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

        They are those of a new observation, of the mean weight and with no other than the learnt noise; with
        `noise=False`, those of the function without noise. Of several targets mean and standard deviation have the
        shape [rows, T], and covariances [rows, rows, T].

        Of a Dask array or DataFrame they are computed lazily, chunk by chunk: arrays of the same chunks, or a DataFrame
        of the same index with the columns "mean" and "std" ("mean_0", … of several targets).
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other, got both")
        if is_dask_collection(X):
            lazy: FloatArray = self._predict_lazily(X, return_std, return_cov, noise)
            return lazy
        inputs = self._new_inputs(X)
        if return_cov:
            mean, covariance = (
                part.cpu().numpy() for part in self._posterior.joint(standardised(inputs, self._scaling_X))
            )
            if noise:
                covariance[np.diag_indices_from(covariance)] += self.noise_variance_
            if mean.ndim > 1:
                covariance = covariance[:, :, None]
            return self._scaling_y.undo(mean), covariance * self._scaling_y.scale**2
        if return_std:
            return self._mean_and_std(inputs, noise)
        mean = self._new_means(inputs)
        for rows in row_chunks(len(inputs), PREDICTED_ROWS):
            mean[rows] = self._posterior.mean(standardised(inputs[rows], self._scaling_X)).cpu().numpy()
        return self._scaling_y.undo(mean)

    def predict_gradient(self, X: Any, noise: bool = True) -> tuple[FloatArray, FloatArray]:
        """Derivatives of predictive mean and standard deviation by the inputs, at the rows of X: [N, D] each.

        Of T targets they are [N, T, D]. They are those of what `predict(X, return_std=True, noise=noise)` returns, in
        the user's units. Where the standard deviation is 0 its derivative is given as 0. Functions under a
        kernel with a kink (Matern12, ArcCosine of order 0) have no derivative at the model's own points: there, what
        has none is left out.
        """
        inputs = self._new_inputs(X)
        found = prediction_gradients(self._posterior, standardised(inputs, self._scaling_X))
        variance, by_mean, by_variance = (
            part.cpu().numpy() for part in (found.variance, found.mean_by_x, found.variance_by_x)
        )
        std = np.sqrt(variance + self.noise_variance_ if noise else variance)[:, None]
        by_std = np.divide(by_variance, 2.0 * std, out=np.zeros_like(by_variance), where=std > 0.0)
        if by_mean.ndim == 3:
            by_std = by_std[:, None]
        units = np.asarray(self._scaling_y.scale)[..., None] / self._scaling_X.scale  # [1, D] or [T, D]
        return by_mean * units, by_std * units

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> FloatArray:
        """Draws of new observations, noise included, at the rows of X: [rows, n_samples], or [rows, T, n_samples].

        Up to 2048 rows have the exact joint covariance. At more rows, of which no square array is made, whole functions
        are drawn: a draw from the prior by random features, corrected at the model's points. The correction is exact,
        and covariances of the prior are right to a few per cent of its variance. Of a kernel of your own no features
        are known: then rows are correlated through inducing points alone.
        """
        inputs = standardised(self._new_inputs(X), self._scaling_X)
        if not isinstance(n_samples, (int, np.integer)) or n_samples < 1:
            raise ValueError(f"n_samples must be a whole number of at least 1, got {n_samples!r}")
        random = check_random_state(random_state)
        seed = int(random.randint(2**31))
        if len(inputs) <= JOINT_ROWS:
            draws = self._posterior.sample(inputs, int(n_samples), seed).movedim(0, -1).cpu().numpy()
        else:
            draws = self._drawn_functions(inputs, int(n_samples), seed)
        draws = draws + math.sqrt(self.noise_variance_) * random.standard_normal(draws.shape)
        return np.moveaxis(self._scaling_y.undo(np.moveaxis(draws, -1, 0)), 0, -1)

    def log_predictive_density(self, X: Any, y: Any) -> FloatArray:
        """Log density of each target y under its own predictive distribution, in nats and in the user's units."""
        inputs, targets = self._new_inputs_and_targets(X, y)
        mean, std = self._mean_and_std(inputs, noise=True)
        error = (targets - mean) / std
        density: FloatArray = -0.5 * (math.log(2.0 * math.pi) + error**2) - np.log(std)
        return density

    def to_torch(self, *, noise: bool = True) -> TorchPosterior:
        """A torch module from inputs [..., D] to predictive mean and variance [...], with gradients by the inputs.

        Of T targets both are [..., T]. They are those of `predict`, in the user's units; with `noise=False`, those of
        the function without noise.
        """
        check_is_fitted(self, "_posterior")
        return TorchPosterior(self._posterior, self._scaling_X, self._scaling_y, noise)

    def save_onnx(self, path: str | os.PathLike[str], *, noise: bool = True) -> None:
        """Write a sparse GP as an ONNX graph from "X" [N, D] to "mean" [N] and "variance" [N], all in float64.

        Of T targets both are [N, T]. They are those of `predict`, in the user's units; with `noise=False`, those of
        the function without noise. Needs the extra "onnx".
        """
        check_is_fitted(self, "_posterior")
        save_onnx(self, path, noise=noise)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _predict_lazily(self, X: Any, return_std: bool, return_cov: bool, noise: bool) -> Any:
        from nearexact.cluster.predicting import predict_lazily  # here, since Dask is an extra

        check_is_fitted(self, "_posterior")
        if return_cov:
            raise ValueError("return_cov is for arrays, not for Dask collections, whose rows are in several places")
        return predict_lazily(self, X, return_std=return_std, noise=noise)

    def _drawn_functions(self, inputs: torch.Tensor, n_samples: int, seed: int) -> FloatArray:
        """Draws at standardised rows: [rows, n_samples], or [rows, T, n_samples]."""
        count = math.prod(self._posterior.weights.shape[1:])
        draws = [
            draw_functions(of_target(self._posterior, number), n_samples, seed + number)(inputs).cpu().numpy()
            for number in range(count)
        ]
        return draws[0] if self._posterior.weights.ndim == 1 else np.stack(draws, axis=1)

    def _noise_of_rows(self, y: FloatArray, noise_variance: Any = None, sample_weight: Any = None) -> FloatArray:
        """The variance of the noise of new rows, learnt and known, in the user's units: [N], or [N, T]."""
        noise = KnownNoise.of(noise_variance, sample_weight, y, self._weight_unit)
        learnt = self.noise_variance_ * self._scaling_y.scale**2
        if noise is None:
            return np.broadcast_to(learnt, y.shape)
        factors = noise.unit / noise.weights
        return learnt * factors + noise.variances if y.ndim == 1 else learnt * factors[:, None]

    def _new_inputs(self, X: Any) -> FloatArray:
        check_is_fitted(self, "_posterior")
        inputs: FloatArray = self._validated(X, reset=False)
        return inputs

    def _standardised_inputs(self, inputs: FloatArray) -> torch.Tensor:
        return standardised(inputs, self._scaling_X)

    def _new_inputs_and_targets(self, X: Any, y: Any) -> tuple[FloatArray, FloatArray]:
        check_is_fitted(self, "_posterior")
        inputs, targets = self._validated(X, y, **target_checks(y), reset=False)
        if targets.shape[1:] != np.shape(self._scaling_y.scale):
            count = math.prod(np.shape(self._scaling_y.scale))
            raise ValueError(
                f"the model was fitted to {count} target{'s' * (count > 1)}, got y of shape {targets.shape}"
            )
        return inputs, targets.astype(np.float64)

    def _validated(self, *data: Any, **options: Any) -> Any:
        """What scikit-learn's checks leave of X, or of X and y; their errors say where tables of other kinds belong."""
        try:
            return validate_data(self, *map(as_array, data), dtype=np.float64, **options)
        except (TypeError, ValueError) as error:
            hint = table_hint(data[0], error)
            if hint is None:
                raise
            raise ValueError(f"{error}\n{hint}") from error

    def _new_means(self, inputs: FloatArray) -> FloatArray:
        return np.empty((len(inputs), *np.shape(self._scaling_y.scale)))

    def _mean_and_std(self, inputs: FloatArray, noise: bool) -> tuple[FloatArray, FloatArray]:
        mean, variance = self._new_means(inputs), np.empty(len(inputs))
        for rows in row_chunks(len(inputs), PREDICTED_ROWS):
            parts = self._posterior.predict(standardised(inputs[rows], self._scaling_X))
            mean[rows], variance[rows] = (part.cpu().numpy() for part in parts)
        std = np.sqrt(variance + self.noise_variance_ if noise else variance)
        return self._scaling_y.undo(mean), (std if mean.ndim == 1 else std[:, None]) * self._scaling_y.scale
