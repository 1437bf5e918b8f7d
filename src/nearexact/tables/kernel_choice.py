"""Which kernel suits the data: all are trained with few inducing points, and the one with the best bound is taken.

The bound on the log marginal likelihood rewards a kernel that explains the data and can do so with few points, which is
what a sparse GP needs. The choice takes a part of the time, and its trials are kept in the summary.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from nearexact.estimators import SGPRegressor
from nearexact.gp.safety import NumericalError
from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52, SquaredExponential
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

Origin = tuple[float, ...]  # where each input splits the target best, on the standardised scale
Maker = Callable[[Origin], Kernel]

SIMPLE: dict[str, Maker] = {
    "se": lambda _: SquaredExponential(),
    "matern12": lambda _: Matern12(),
    "matern32": lambda _: Matern32(),
    "matern52": lambda _: Matern52(),
    "arccosine": lambda _: ArcCosine(),
    "arccosine-split": lambda origin: ArcCosine(origin=origin),
    "arccosine1": lambda _: ArcCosine(order=1),
}


def _with_linear(make: Maker) -> Maker:
    return lambda origin: make(origin) + Linear()


KERNELS = SIMPLE | {f"{name}+linear": _with_linear(make) for name, make in SIMPLE.items()}
AUTO = "auto"
SHARE_OF_TIME = 0.3  # for the choice
FIRST_ROUND = 0.6  # of that
FEW_POINTS, MORE_POINTS = 50, 200  # in the first round and in the second
FINALISTS = 4
EQUAL_BOUNDS = 0.1  # nats: odds of 1.1 to 1
FEW_ROWS = 5000  # a random part of larger data
COLUMNS_AT_ONCE = 100  # that are sorted at once to find their best cuts
LEAST_EXPLAINED = 1e-10  # of the sum of squares of the standardised target: less is rounding


@dataclass(frozen=True)
class Trial:
    """A kernel that was tried."""

    kernel: str
    bound: float  # the best lower bound on the log marginal likelihood; −∞ where it could not be computed
    m: int
    seconds: float
    note: str = ""


@dataclass(frozen=True, eq=False)
class Choice:
    """The kernel that was chosen, and all that were tried; none of them if it was given by name."""

    name: str
    kernel: Kernel  # with the values to start from
    trials: tuple[Trial, ...] = ()
    rows: int = 0  # that they were tried on; 0 if there was no time to try any


def check_kernel(name: str) -> None:
    """Raise a ValueError if there is no kernel of this name."""
    if name not in KERNELS and name != AUTO:
        raise ValueError(f"there is no kernel {name!r}; there are {AUTO}, {', '.join(KERNELS)}")


def named(name: str, X: FloatArray | pd.DataFrame, y: FloatArray) -> Choice:
    """The kernel of this name, with the values to start from for these data."""
    return Choice(name, KERNELS[name](best_splits(np.asarray(X), np.asarray(y)) if "split" in name else ()))


def best_splits(X: FloatArray, y: FloatArray) -> Origin:
    """Where to cut each input so that the target differs most between the sides, in standard deviations from the mean.

    Functions under an arc-cosine kernel change fastest near its origin. The mean, where standardised inputs have it, is
    as good a place as any, unless the target jumps: then two inducing points, one on each side, say it all.
    """
    scaling = Scaling.of(X)
    cuts = np.array(scaling.shift)
    for start in range(0, X.shape[1], COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        thresholds = _thresholds(X[:, columns], y)
        cuts[columns] = np.where(np.isnan(thresholds), cuts[columns], thresholds)
    return tuple(scaling.apply(cuts).tolist())


def _thresholds(X: FloatArray, y: FloatArray) -> FloatArray:
    """Where to cut each column so that the means of y on both sides explain most of it; NaN where nothing does: [D]."""
    n = len(y)
    order = np.argsort(X, axis=0, kind="stable")
    sorted_X = np.take_along_axis(X, order, axis=0)
    errors = Scaling.of(y).apply(y)  # mean 0: what the left side sums up to, the right side does with the other sign
    left = np.cumsum(errors[order], axis=0)[:-1]  # [N − 1, D]
    size = np.arange(1, n)[:, None]
    explained = left**2 * (1.0 / size + 1.0 / (n - size))  # sum of squares between the two sides
    explained[sorted_X[1:] <= sorted_X[:-1]] = 0.0  # there is no cut between equal values
    best = explained.argmax(0)
    columns = np.arange(X.shape[1])
    middle = 0.5 * sorted_X[best, columns] + 0.5 * sorted_X[best + 1, columns]
    return np.where(explained[best, columns] > LEAST_EXPLAINED, middle, np.nan)


def choose(
    X: FloatArray | pd.DataFrame,
    y: FloatArray,
    *,
    time_limit: float = math.inf,
    memory_limit: int | float | str | None = None,
    seed: int = 0,
    on_trial: Callable[[Trial, SGPRegressor | None], None] = lambda trial, model: None,
) -> Choice:
    """Try all kernels within this time (seconds), on at most FEW_ROWS rows, and take the one with the best bound.

    All are tried with few points, then the best of them with more: with few points, the bound mostly shows how well a
    kernel does with few points.
    """
    rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:FEW_ROWS])
    contest = _Contest(pd.DataFrame(X).iloc[rows], np.asarray(y)[rows], memory_limit, seed, on_trial)
    origin = best_splits(contest.X.to_numpy(dtype=np.float64), contest.y)
    starts: dict[str, Kernel] = {}
    fitted: dict[str, SGPRegressor] = {}
    first: list[Trial] = []
    untried: list[str] = []
    for position, (name, make) in enumerate(KERNELS.items()):
        simple = fitted.get(name.removesuffix("+linear"))
        # A sum starts from the parameters of its fitted part: from others it often ends up linear.
        starts[name] = make(origin) if simple is None else simple.kernel_ + Linear()
        left = (FIRST_ROUND * time_limit - contest.seconds()) / (len(KERNELS) - position)
        trial, model = contest.attempt(name, starts[name], FEW_POINTS, left)
        first.append(trial)
        if left <= 0.0:
            untried.append(name)
        if model is not None:
            fitted[name] = model
    if untried and not fitted:  # too little time to choose: train the first one that may do
        return Choice(untried[0], starts[untried[0]], tuple(first))
    finalists = sorted((trial for trial in first if trial.kernel in fitted), key=lambda trial: -trial.bound)
    final: list[Trial] = []
    for position, trial in enumerate(finalists[:FINALISTS]):
        left = (time_limit - contest.seconds()) / (FINALISTS - position)
        again, _ = contest.attempt(trial.kernel, fitted[trial.kernel].kernel_, MORE_POINTS, left, "second round")
        final.append(again)
    best = best_of([*first, *final])
    return Choice(best.kernel, starts[best.kernel], (*first, *final), len(rows))


class _Contest:
    """Trials on the same rows, and the time that they take."""

    def __init__(
        self,
        X: pd.DataFrame,
        y: FloatArray,
        memory_limit: int | float | str | None,
        seed: int,
        on_trial: Callable[[Trial, SGPRegressor | None], None],
    ) -> None:
        self.X, self.y = X, y
        self.memory_limit, self.seed, self.on_trial = memory_limit, seed, on_trial
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Since the first trial."""
        return time.perf_counter() - self._started

    def attempt(
        self, name: str, start: Kernel, m: int, time_limit: float, note: str = ""
    ) -> tuple[Trial, SGPRegressor | None]:
        """Train from this start with up to m points; without a model if it fails or if there is no time."""
        started = time.perf_counter()
        trial, model = Trial(name, -math.inf, 0, 0.0, "no time was left"), None
        if time_limit > 0.0:
            model = SGPRegressor(
                start,
                time_limit=time_limit if math.isfinite(time_limit) else None,
                memory_limit=self.memory_limit,
                max_inducing=m,
                random_state=self.seed,
            )
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)  # few points are not meant to be enough
                    model.fit(self.X, self.y)
                trial = _trial(name, model, started, note)
            except KeyboardInterrupt:
                if hasattr(model, "certificate_"):  # the best model so far
                    self.on_trial(_trial(name, model, started), model)
                raise
            except NumericalError as error:
                trial, model = Trial(name, -math.inf, 0, time.perf_counter() - started, str(error)), None
        self.on_trial(trial, model)
        return trial, model


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial with the best bound; of bounds too close to tell apart, the one with the fewest points."""
    highest = max(trial.bound for trial in trials)
    if not math.isfinite(highest):
        raise NumericalError(f"no kernel could be computed; the first one said: {trials[0].note}")
    equals = [trial for trial in trials if trial.bound >= highest - EQUAL_BOUNDS]
    return min(equals, key=lambda trial: (trial.m, trial.kernel.count("+"), -trial.bound))


def _trial(name: str, model: SGPRegressor, started: float, note: str = "") -> Trial:
    # The certificate's lower bound is the tightest that there is, and no looser than the ELBO.
    return Trial(name, model.certificate_.lower, len(model.inducing_points_), time.perf_counter() - started, note)
