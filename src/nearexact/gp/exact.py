"""Exact GP regression: log marginal likelihood, full gradient and posterior from one Cholesky factorisation, O(N³)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nearexact.gp import in_32_bits
from nearexact.gp.bounds import likelihood
from nearexact.gp.lapack import cholesky, inverse
from nearexact.gp.linalg import as_columns, solve_columns
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.parameters import ParameterLayout
from nearexact.gp.posterior import ExactPosterior, least_noise, relative_rounding, rounding_error, rounding_slope
from nearexact.gp.rounding import check_digits
from nearexact.gp.row_noise import RowNoise, check_noise, noise_variances
from nearexact.gp.safety import NumericalError, Numerics, Repairs, jittered_cholesky, numerics_for
from nearexact.kernels.base import Cross, Kernel, Tensors, add_to
from nearexact.kernels.form import with_diagonal
from nearexact.typing import FloatArray
from nearexact.validation import as_training_data

SQUARE_ARRAYS = 3  # [N, N] arrays that are alive at once, at most: K, its factor, and that of a model
TRIAL_NOISE, FEWEST_TRIAL_ROWS = 0.1, 100
TRIAL_WORK = 10**8  # of the kernel matrix of the trial: its rows, squared, times the inputs
TRIAL_ROWS = 1000  # an evaluation of which tells what one of all rows costs
TRIALS, MOST_TRIALS = 3, 20
LEAST_TIMED = 0.02  # seconds of all trials together
LEAST_OF_MEAN = 0.5  # that the fastest of them has taken
CHUNK_ARRAYS = 6  # [rows, N] arrays of a gradient's chunk, besides the kernel's own
EPS, EPS_32 = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps
# Added to every entry of K, of which it changes no digit but where there is next to nothing. Products of such entries
# would be below 2e-308, and processors take many times as long for these.
LEAST_ENTRY = 1e-100
NEGLIGIBLE_ROUNDING = 1e-10  # per row, relative to the noise: its derivatives are far below those of the likelihood
LITTLE_SHARE = 1.0 / 30.0  # of the time limit: a factorisation that takes no more leaves time for everything
SLOWER_FACTORISATION = 1.3  # times what is predicted, or the last one has taken: what is kept for one


class ExactObjective:
    """Negative log marginal likelihood and its gradient as a function of θ.

    Of several targets y [N, T] it is the sum; they share all hyperparameters, and so the factorisation. Where the rows
    stand for so many that they are a subset of, θ at which those would need too many digits cannot be computed.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        X: Any,
        y: Any,
        *,
        row_noise: RowNoise | None = None,
        numerics: Numerics | None = None,
        stands_for: int | None = None,
    ) -> None:
        self.stands_for = stands_for
        self.X, self.y = as_training_data(X, y)
        self.n = len(self.y)
        self.row_noise = check_noise(row_noise, self.X)
        self.numerics = numerics = numerics or numerics_for(noise_variance)
        self.layout = ParameterLayout(kernel, self.X.shape[1], numerics)
        kernel = self.layout.kernel
        self.theta0 = self.layout.pack(kernel, noise_variance)
        self.repairs = Repairs()
        self._centre = self.X.mean(0)
        self._features = kernel.features(self.X, self._centre)
        self._spare: dict[torch.dtype, list[Tensor]] = {}  # arrays [N, N] that no evaluation uses at present

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """−LML and its gradient at θ; NaN where θ is not finite."""
        return self.layout.negated(self.value_and_gradient, theta)

    def nearly(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """The same from a factor in 32 bits where that is faster and loses hardly anything.

        What 32 bits may have added to the likelihood is taken off: it is not above that of 64 bits.
        """
        if self.n < in_32_bits.FEWEST_ROWS:
            return self(theta)
        return self.layout.negated(self._value_and_gradient_in_32_bits, theta)

    def factorise(self, kernel: Kernel, noise_variance: float) -> ExactPosterior:
        """The model at these hyperparameters."""
        kernel = self.layout.check(kernel)
        with self._arrays(torch.float64) as (K,):
            return self._factorised(kernel, noise_variance, kernel.against(self._features), K)

    def _factorised(
        self, kernel: Kernel, noise_variance: float, cross: Cross, K: Tensor, room: Tensor | None = None
    ) -> ExactPosterior:
        """The same; K becomes K + sI, and the factor is written into `room` if that is given."""
        self._fill(K, cross, kernel.diagonal(self._features), noise_variance)
        L, jitter = jittered_cholesky(
            K, self.repairs, what="K + sI", first_jitter=0.0, numerics=self.numerics, out=room
        )
        return ExactPosterior(
            kernel=kernel,
            noise_variance=noise_variance,
            X=self.X,
            centre=self._centre,
            features_X=self._features,
            y=self.y,
            L=L,
            weights=solve_columns(L, self.y),
            jitter=jitter,
            repairs=self.repairs,
            row_noise=self.row_noise,
        )

    def _fill(self, K: Tensor, cross: Cross, diagonal: Tensor, noise_variance: float) -> None:
        """K becomes K + sI."""
        if self.stands_for is not None:
            check_digits(float(diagonal.mean()) * self.stands_for, noise_variance)
        for rows in row_chunks(len(K), chunk_rows(len(K))):  # so that the kernel's temporaries stay small
            cross.values(self._features[rows], out=K[rows])
            K[rows].add_(LEAST_ENTRY)
        with_diagonal(K, diagonal + noise_variances(self.row_noise, noise_variance))

    def release(self) -> None:
        """Give back the memory that is kept between evaluations."""
        self._spare.clear()

    def value_and_gradient(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        """LML, and its derivatives by the kernel's parameters and by the noise variance: ½ tr((ααᵀ − K⁻¹) ∂K).

        What rounding may have added to it is taken off. Where a function has no noise, the likelihood rises along a
        ridge without end, on which the signal grows until nothing of what is computed can be trusted.
        """
        kernel = self.layout.check(kernel)
        cross = kernel.against(self._features)
        with self._arrays(torch.float64, torch.float64) as (K, room):
            model = self._factorised(kernel, noise_variance, cross, K, room)
            value, alpha = model.sure_lml, model.weights
            K_inv = inverse(model.L)  # [N, N]; the factor is not needed any more
            gradients, by_noise = self._derivatives(kernel, cross, with_diagonal(K, model.diagonal), alpha, K_inv)
        by_signal, more_by_noise = self._caution(kernel, noise_variance, model.diagonal, EPS)
        add_to(gradients, by_signal)
        return value, gradients, by_noise + more_by_noise

    def _value_and_gradient_in_32_bits(self, kernel: Kernel, noise_variance: float) -> tuple[float, Tensors, float]:
        kernel = self.layout.check(kernel)
        diagonal = kernel.diagonal(self._features)
        relative = relative_rounding(diagonal, self._least_noise(noise_variance), EPS_32)
        if not in_32_bits.suffice(self.n, relative):
            return self.value_and_gradient(kernel, noise_variance)
        cross, targets = kernel.against(self._features), self.y[0].numel()
        with self._arrays(torch.float64, torch.float32) as (K, room):
            self._fill(K, cross, diagonal, noise_variance)
            solution = in_32_bits.solve(K, self.y, room)
            if solution is not None:
                log_det, quadratic, alpha, K_inv = solution
                value = likelihood(self.n, log_det, quadratic, targets) - targets * rounding_error(relative)
                gradients, by_noise = self._derivatives(kernel, cross, with_diagonal(K, diagonal), alpha, K_inv)
        if solution is None:
            return self.value_and_gradient(kernel, noise_variance)
        by_signal, more_by_noise = self._caution(kernel, noise_variance, diagonal, EPS_32)
        add_to(gradients, by_signal)
        return value, gradients, by_noise + more_by_noise

    def _derivatives(
        self, kernel: Kernel, cross: Cross, K: Tensor, alpha: Tensor, K_inv: Tensor
    ) -> tuple[Tensors, float]:
        """½ tr((ααᵀ − K̂⁻¹) ∂K̂) from K without noise and the lower triangle of K̂⁻¹; both are overwritten."""
        targets = self.y[0].numel()
        by_row = as_columns(alpha).square().sum(1) - targets * K_inv.diagonal()  # twice that by a row's noise
        by_noise = 0.5 * float((by_row if self.row_noise is None else by_row * self.row_noise.factors).sum())
        gradients: Tensors = {}
        chunks = [*row_chunks(self.n, chunk_rows(self.n))]
        room = None if K_inv.dtype == K.dtype else K.new_empty(min(chunk_rows(self.n), self.n), self.n)
        for rows in chunks:
            # Everything is symmetric: up to the diagonal is enough, with what is below it counted twice.
            right = slice(0, rows.stop)
            K_bar = K_inv[rows, right]
            if room is not None:
                K_bar = room[: len(K_bar), right].copy_(K_bar)
            if alpha.ndim == 1:
                K_bar.addr_(alpha[rows], alpha[right], beta=-1.0)
            else:
                K_bar.addmm_(alpha[rows], alpha[right].T, beta=-targets)
            K_bar.tril_(rows.start).diagonal(rows.start).mul_(0.5)
            part = cross if len(chunks) == 1 else kernel.against(self._features[right])
            part.add_adjoint(self._features[rows], K_bar, K[rows, right], holds_values=True)
            add_to(gradients, part.gradients())
        return gradients, by_noise

    def _caution(self, kernel: Kernel, noise_variance: float, diagonal: Tensor, eps: float) -> tuple[Tensors, float]:
        """Derivatives of what is taken off for rounding; none where that does not count."""
        noise = self._least_noise(noise_variance)
        relative = relative_rounding(diagonal, noise, eps)
        if relative < NEGLIGIBLE_ROUNDING * self.n:
            return {}, 0.0
        slope = -self.y[0].numel() * rounding_slope(relative)  # by the relative error Σk(x, x)·eps/s
        weights = torch.full_like(self.X[:, 0], slope * eps / noise)
        variances = noise_variances(self.row_noise, noise_variance)
        factor = 1.0 if self.row_noise is None else float(self.row_noise.factors[torch.as_tensor(variances).argmin()])
        return kernel.diagonal_vjp(self._features, weights), -slope * relative / noise * factor

    def _least_noise(self, noise_variance: float) -> float:
        return least_noise(self.row_noise, noise_variance)

    @contextmanager
    def _arrays(self, *types: torch.dtype) -> Iterator[tuple[Tensor, ...]]:
        """An array [N, N] of each type, kept for the next evaluation: new memory takes longer to write to.

        Several threads may evaluate at once: each has its own. What was kept of other types is given back.
        """
        for dtype in list(self._spare):
            if dtype not in types:
                self._spare.pop(dtype, None)
        arrays = tuple(self._array(dtype) for dtype in types)
        try:
            yield arrays
        finally:
            for array in arrays:
                self._spare.setdefault(array.dtype, []).append(array)

    def _array(self, dtype: torch.dtype) -> Tensor:
        try:
            return self._spare[dtype].pop()
        except (KeyError, IndexError):
            return self.X.new_empty(self.n, self.n, dtype=dtype)


def exact_memory(kernel: Kernel, n: int) -> int:
    """Bytes that an evaluation allocates besides the data."""
    chunk = min(n, chunk_rows(n)) * n * (CHUNK_ARRAYS + kernel.temporaries)
    return 8 * (SQUARE_ARRAYS * n * n + chunk)


def evaluation_seconds(kernel: Kernel, X: Tensor, y: Tensor, *, little: float, much: float) -> float:
    """What an evaluation with all rows may take on the way, as predicted from one with fewer rows.

    It grows with N³ only where rows are many: before that, most of its time grows with N² or less. So more rows are
    tried where the fewer ones do not tell whether it takes `little`, or `much`.
    """
    seconds = math.inf
    for rows in _trial_sizes(X):
        objective = ExactObjective(kernel, TRIAL_NOISE, X[:rows], y[:rows])
        try:
            trial = fastest(partial(objective.nearly, objective.theta0), time.perf_counter)
        except NumericalError:
            break
        growth = len(X) / rows
        seconds = trial * growth**3
        if seconds <= little or trial * growth**2 > much:
            break
    return seconds


def factorisation_seconds(
    kernel: Kernel, X: Tensor, y: Tensor, clock: Callable[[], float], *, little: float = math.inf
) -> float:
    """What a factorisation with all rows may take, as predicted from one with fewer rows.

    More rows are tried where that is not `little`: on few rows processors are far from their rate. Only the Cholesky
    factor itself grows with N³; with few rows the kernel matrix takes longer.
    """
    seconds = math.inf
    for rows in _trial_sizes(X):
        objective = ExactObjective(kernel, TRIAL_NOISE, X[:rows], y[:rows])
        K = torch.eye(rows, dtype=X.dtype, device=X.device)  # any matrix of this size takes as long
        whole = fastest(partial(objective.factorise, kernel, TRIAL_NOISE), clock)
        factor = min(fastest(partial(cholesky, K), clock), whole)
        growth = len(X) / rows
        seconds = factor * growth**3 + (whole - factor) * growth**2
        if seconds <= little:
            break
    return seconds


def fastest(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of a call; the first one is slower, and others may be by chance.

    Clocks of processor time may go in ticks of milliseconds: there single calls may seem to take no time at all.
    """
    seconds: list[float] = []
    while len(seconds) < TRIALS or (sum(seconds) < LEAST_TIMED and len(seconds) < MOST_TRIALS):
        started = clock()
        call()
        seconds.append(clock() - started)
    return max(min(seconds), LEAST_OF_MEAN * sum(seconds[1:]) / len(seconds[1:]))


def _trial_rows(X: Tensor) -> int:
    return min(len(X), TRIAL_ROWS, max(int(math.sqrt(TRIAL_WORK / X.shape[1])), FEWEST_TRIAL_ROWS))


def _trial_sizes(X: Tensor) -> list[int]:
    """Numbers of rows to try one after the other: twice as many tell more, and take eight times as long."""
    rows = _trial_rows(X)
    return [rows] if 2 * rows > len(X) else [rows, 2 * rows]
