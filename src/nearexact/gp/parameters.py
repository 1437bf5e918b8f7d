"""Positive hyperparameters as one flat vector without constraints, and back.

θ holds the kernel's parameters in their order, then the noise variance; each is floor + softplus(θ_i), so that no
hyperparameter falls below the floor. Where a user has bounded or fixed one, whatever is packed or unpacked is moved to
the nearer of its bounds, and the optimiser is told what they are in θ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import expit
from torch import Tensor

from nearexact.gp.safety import DEFAULT_NUMERICS, Numerics
from nearexact.kernels.base import Kernel, as_kernel
from nearexact.typing import FloatArray

# A value given exactly at the floor lies this far above it: θ stays finite, and the value right to 11 digits. But the
# slope of softplus there is as small as this, so that an optimiser leaves such a parameter where it is.
LEAST_EXCESS = 1e-16
LEAST_LOG, LARGEST_LOG = math.log(LEAST_EXCESS), 50.0  # of an excess that an optimiser may ask for
LARGEST = math.exp(LARGEST_LOG)


Objective = Callable[[FloatArray], tuple[float, FloatArray]]
ThetaBounds = tuple[FloatArray, FloatArray]  # the least and the largest value of each entry

# Value, derivatives by the kernel's parameters, and derivative by the noise variance.
ValueAndGradient = Callable[[Kernel, float], tuple[float, Mapping[str, Tensor], float]]


class ParameterLayout:
    """Where each hyperparameter of a kernel with noise lives in θ."""

    def __init__(self, kernel: Kernel, n_inputs: int, numerics: Numerics = DEFAULT_NUMERICS) -> None:
        self.kernel, self.n_inputs = as_kernel(kernel, n_inputs), n_inputs
        self.numerics = numerics
        self.names = [
            f"{name}[{i}]" if value.ndim else name
            for name, value in self.kernel.parameters.items()
            for i in range(value.size)
        ] + ["noise_variance"]
        intervals = self.kernel.intervals()
        ends = zip(*intervals.values(), numerics.noise_bounds, strict=True)
        self._least, self._largest = (np.concatenate([np.ravel(value) for value in end]) for end in ends)
        self._floors: FloatArray = np.append(np.full(len(self.names) - 1, numerics.floor), numerics.noise_floor)
        for name, largest, floor in zip(self.names, self._largest, self._floors, strict=True):
            if largest < floor:
                raise ValueError(f"bounds on {name} must allow {floor:g} or more, got at most {largest:g}")
        self.nothing_is_free = bool((self._least >= self._largest).all())
        self.is_bounded = bool((self._least > 0.0).any() or np.isfinite(self._largest).any())
        if self.is_bounded:  # the values to start from are within them
            within = {name: np.clip(value, *intervals[name]) for name, value in self.kernel.parameters.items()}
            self.kernel = self.kernel.with_parameters(within)

    @property
    def bounds(self) -> ThetaBounds | None:
        """Between which values each entry of θ stays, if a user has bounded or fixed any of them."""
        if not self.is_bounded:
            return None
        bounded = self._least > 0.0
        lows = np.where(bounded, self._to_theta(np.maximum(self._least, self._floors)), -math.inf)
        highs = np.where(np.isfinite(self._largest), self._to_theta(np.minimum(self._largest, LARGEST)), math.inf)
        return lows, highs

    def pack(self, kernel: Kernel, noise_variance: float) -> FloatArray:
        """θ of the given values; ValueError where one lies below the floor."""
        try:
            noise = float(noise_variance)
        except (TypeError, ValueError) as error:
            raise ValueError(f"noise_variance must be a number, got {noise_variance!r}") from error
        values = np.concatenate([np.ravel(value) for value in kernel.parameters.values()] + [[noise]])
        for name, value, floor in zip(self.names, values, self._floors, strict=True):
            if not (np.isfinite(value) and value >= floor):
                raise ValueError(f"{name} must be finite and at least {floor:g}, got {value:g}")
        return self._to_theta(self._within(values))

    def unpack(self, theta: FloatArray) -> tuple[Kernel, float]:
        """The kernel and noise variance at θ."""
        if np.shape(theta) != (len(self.names),):
            raise ValueError(f"theta must be a vector of {len(self.names)} numbers, got shape {np.shape(theta)}")
        values = self._within(self._floors + np.logaddexp(0.0, theta))
        parameters, start = {}, 0
        for name, value in self.kernel.parameters.items():
            parameters[name] = values[start : start + value.size].reshape(value.shape)
            start += value.size
        return self.kernel.with_parameters(parameters), float(values[-1])

    def check(self, kernel: Kernel) -> Kernel:
        """The same kernel, or a ValueError if it is not of the kind that this layout is for."""
        kernel = as_kernel(kernel, self.n_inputs)
        if not kernel.is_like(self.kernel):
            raise ValueError(f"the kernel must differ from {self.kernel!r} in its parameters only, got {kernel!r}")
        return kernel

    def negated(self, value_and_gradient: ValueAndGradient, theta: FloatArray) -> tuple[float, FloatArray]:
        """The negative of a function of kernel and noise variance, with its gradient, at θ; NaN if θ is not finite."""
        theta = np.asarray(theta, dtype=np.float64)
        if not np.isfinite(theta).all():
            return math.nan, np.full_like(theta, math.nan)
        value, by_parameter, by_noise = value_and_gradient(*self.unpack(theta))
        return -value, -self.gradient(theta, by_parameter, by_noise)

    def gradient(self, theta: FloatArray, by_parameter: Mapping[str, Tensor], by_noise: float) -> FloatArray:
        """∂/∂θ from derivatives by the hyperparameters themselves; d softplus(θ)/dθ is the logistic function."""
        parts = [np.ravel(by_parameter[name].cpu().numpy()) for name in self.kernel.parameters]
        slope: FloatArray = expit(theta)
        return np.concatenate([*parts, [by_noise]]) * slope

    def _within(self, values: FloatArray) -> FloatArray:
        """The nearest values that the bounds allow; what is fixed is so to the last bit."""
        return np.clip(values, self._least, self._largest) if self.is_bounded else values

    def _to_theta(self, values: FloatArray) -> FloatArray:
        excess: FloatArray = np.maximum(values - self._floors, LEAST_EXCESS)
        return excess + np.log(-np.expm1(-excess))  # log(expm1(excess)) without overflow


class LogCoordinates:
    """θ by the logarithms of what the hyperparameters exceed their floor by: where the optimiser moves.

    A likelihood changes with the ratio of two lengthscales, not with their difference. In θ itself, which is nearly
    linear in a large hyperparameter, an input that does not matter takes dozens of steps to leave; in logarithms L-BFGS
    mostly needs several times fewer evaluations, and stops short of the optimum less often;
    benchmarks/search.py compares both.
    """

    @staticmethod
    def from_theta(theta: FloatArray) -> FloatArray:
        """log softplus(θ)."""
        return np.log(np.logaddexp(0.0, np.maximum(theta, LEAST_LOG)))

    @staticmethod
    def to_theta(logs: FloatArray) -> FloatArray:
        """The θ whose softplus has these logarithms."""
        excess = np.exp(np.clip(logs, LEAST_LOG, LARGEST_LOG))
        return excess + np.log(-np.expm1(-excess))

    @classmethod
    def bounds(cls, bounds: ThetaBounds | None) -> ThetaBounds | None:
        """Bounds on θ as bounds on the logarithms."""
        return None if bounds is None else (cls.from_theta(bounds[0]), cls.from_theta(bounds[1]))

    @classmethod
    def objective(cls, objective: Objective) -> Objective:
        """The same objective as a function of the logarithms."""

        def in_logs(logs: FloatArray) -> tuple[float, FloatArray]:
            theta = cls.to_theta(logs)
            value, gradient = objective(theta)
            return value, cls.gradient(theta, gradient)

        return in_logs

    @staticmethod
    def gradient(theta: FloatArray, gradient: FloatArray) -> FloatArray:
        """A gradient by θ as one by the logarithms."""
        # d log softplus(θ)/dθ = expit(θ)/softplus(θ), hence ∂/∂log = softplus(θ)/expit(θ) · ∂/∂θ.
        by_logs: FloatArray = gradient * np.logaddexp(0.0, theta) / expit(theta)
        return by_logs
