"""Which kernel suits the data: each one is trained with few inducing points, and the best bound wins.

The bound on the log marginal likelihood rewards a kernel that explains the data and can do so with few points, which is
what a sparse GP needs. The choice takes a part of the time; what was tried is told.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from nearexact.estimators import SGPRegressor
from nearexact.gp.linalg import NumericalError
from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52, SquaredExponential
from nearexact.kernels.base import FloatArray

SIMPLE: dict[str, Callable[[], Kernel]] = {
    "se": SquaredExponential,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "arccosine": ArcCosine,
    "arccosine1": lambda: ArcCosine(order=1),
}
KERNELS: dict[str, Callable[[], Kernel]] = {
    **SIMPLE,
    **{f"{name}+linear": (lambda make=make: make() + Linear()) for name, make in SIMPLE.items()},  # type: ignore[misc]
}
AUTO = "auto"
SHARE_OF_TIME = 0.3  # for the choice
FEW_POINTS = 50
FEW_ROWS = 20_000  # a random part of larger data


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
    trials: tuple[Trial, ...] = ()
    rows: int = 0  # that they were tried on

    @property
    def kernel(self) -> Kernel:
        """With the values to start from."""
        return KERNELS[self.name]()


def check_kernel(name: str) -> None:
    """Raise a ValueError if there is no kernel of this name."""
    if name not in KERNELS and name != AUTO:
        raise ValueError(f"there is no kernel {name!r}; there are {AUTO}, {', '.join(KERNELS)}")


def choose(
    X: FloatArray | pd.DataFrame,
    y: FloatArray,
    *,
    time_limit: float = math.inf,
    memory_limit: int | float | str | None = None,
    seed: int = 0,
    on_trial: Callable[[Trial, SGPRegressor | None], None] = lambda trial, model: None,
) -> Choice:
    """Try all kernels within this time (seconds), on at most FEW_ROWS rows, and take the one with the best bound."""
    started = time.perf_counter()
    rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:FEW_ROWS])
    X, y = pd.DataFrame(X).iloc[rows], np.asarray(y)[rows]
    trials: list[Trial] = []
    for position, name in enumerate(KERNELS):
        begun = time.perf_counter()
        left = (time_limit - (begun - started)) / (len(KERNELS) - position)
        if left <= 0.0:
            trials.append(Trial(name, -math.inf, 0, 0.0, "no time was left"))
            on_trial(trials[-1], None)
            continue
        model = SGPRegressor(
            KERNELS[name](),
            time_limit=left if math.isfinite(left) else None,
            memory_limit=memory_limit,
            max_inducing=FEW_POINTS,
            random_state=seed,
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # few points are not meant to be enough
                model.fit(X, y)
            trials.append(_trial(name, model, begun))
            on_trial(trials[-1], model)
        except KeyboardInterrupt:
            if hasattr(model, "certificate_"):  # better than nothing
                on_trial(_trial(name, model, begun), model)
            raise
        except NumericalError as error:
            trials.append(Trial(name, -math.inf, 0, time.perf_counter() - begun, str(error)))
            on_trial(trials[-1], None)
    best = max(trials, key=lambda trial: trial.bound)
    if not math.isfinite(best.bound):
        raise NumericalError(f"no kernel could be computed; the first one said: {trials[0].note}")
    return Choice(best.kernel, tuple(trials), len(y))


def _trial(name: str, model: SGPRegressor, begun: float) -> Trial:
    # The certificate's lower bound is the tightest that there is, and no looser than the ELBO.
    return Trial(name, model.certificate_.lower, len(model.inducing_points_), time.perf_counter() - begun)
