"""Which kernel suits the data: the one whose exact likelihood of a common subset of the rows is highest.

Every kernel is optimised to its end on a small subset, from two starts; the best of them, and always `se`, go on to
subsets that double in size, each from where it ended on the one before. A round that time cuts short does not count, so
that a slow machine gets the choice of a smaller subset, not of other kernels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

from nearexact.gp.budget import TimeIsUpError, Timer
from nearexact.gp.exact import ExactObjective, exact_memory
from nearexact.gp.optimise import LBFGSSettings, OptimiserEnd, minimise
from nearexact.gp.parameters import LogCoordinates, ParameterLayout
from nearexact.gp.posterior import ExactPosterior
from nearexact.gp.row_noise import noise_of
from nearexact.gp.rows import LocalRows
from nearexact.gp.safety import DEFAULT_NUMERICS, NumericalError, Numerics
from nearexact.gp.starts import SMOOTH_NOISE, START_NOISE, Start, rough_start, with_less_influence
from nearexact.gp.subsets import subset_order, subset_sizes
from nearexact.kernels import Kernel, Linear
from nearexact.kernels.base import as_kernel
from nearexact.kernels.composite import Composite
from nearexact.known_noise import KnownNoise
from nearexact.limits import memory_budget
from nearexact.scaling import Scaling
from nearexact.tables.kernel_names import COMPARED, LINEAR, SIMPLE, SIMPLEST, SPLIT
from nearexact.tables.little_noise import LessNoise, with_less_noise
from nearexact.tables.named_kernels import kernel_with_origin
from nearexact.tables.splits import best_cuts, best_splits
from nearexact.typing import FloatArray, IndexArray

Starts = Callable[[str, ParameterLayout], list[FloatArray]]  # of a kernel's name and layout

SHARE_OF_TIME = 0.3  # for the choice
FEW_ROWS, MOST_ROWS = 250, 2000  # of the smallest subset, at most, and of the largest
FINALISTS = (6, 4, 3)  # that go on to the second subset, to the third, and to those after it; `se` besides
# Odds of less than e² to 1 do not tell kernels apart: as much is won or lost with other rows, or in another optimum.
EQUAL_LIKELIHOODS = 2.0  # nats, in total
SPLIT_ROWS = 5000  # from which the origins of arc-cosine kernels are found
SETTINGS = LBFGSSettings(max_iterations=100, ftol=1e-5)  # to about 0.01 nats on a thousand rows
COST_POWER = 2.0  # of the rows: an evaluation grows faster, but fewer are needed from where the last subset has led
UNTRIED = "not tried: no time was left"
NO_MEMORY = "not tried: the memory limit allows no subset of the rows"
CUT_SHORT = "cut short by the time limit"
LITTLE_NOISE = "with less noise than usual"


@dataclass(frozen=True)
class Trial:
    """A kernel that was tried on a subset of the rows."""

    kernel: str
    bound: float  # the exact log marginal likelihood of these rows, the highest that was found; −∞ if there is none
    rows: int  # of the subset; 0 if the kernel was not tried
    seconds: float
    note: str = ""
    parameters: int = 0  # that were optimised

    @property
    def score(self) -> float:
        """The likelihood less ½ log(rows) for each parameter (Schwarz 1978): what kernels are compared by.

        Optimised parameters raise the likelihood also where they explain nothing but these rows.
        """
        return self.bound - 0.5 * math.log(max(self.rows, 1)) * self.parameters

    @property
    def has_likelihood(self) -> bool:
        """Whether a likelihood could be computed."""
        return math.isfinite(self.bound)


@dataclass(frozen=True, eq=False)
class KernelOptimum:
    """Hyperparameters that were found for a kernel, on the standardised scale, and the likelihood there."""

    name: str
    kernel: Kernel
    noise_variance: float
    likelihood: float  # exact log marginal likelihood of the subset's rows
    rows: int  # of the subset


@dataclass(frozen=True, eq=False)
class Choice:
    """The kernel that was chosen, and all that were tried; none of them if it was given."""

    name: str
    kernel: Kernel  # as it is before any training
    trials: tuple[Trial, ...] = ()
    rows: int = 0  # of the subset that decided; 0 if there was none
    optimum: KernelOptimum | None = None
    order: IndexArray | None = None  # positions of rows; each subset is a beginning of it
    less_noise: LessNoise | None = None  # where there is less than usual

    @property
    def start(self) -> Start | None:
        """What training may start from."""
        return None if self.optimum is None else (self.optimum.kernel, self.optimum.noise_variance)

    @property
    def tried(self) -> list[str]:
        """Names of kernels for which a likelihood was computed."""
        return list(dict.fromkeys(trial.kernel for trial in self.trials if trial.has_likelihood))

    @property
    def untried(self) -> list[str]:
        """Names of kernels for which none was."""
        return list(dict.fromkeys(trial.kernel for trial in self.trials if trial.kernel not in self.tried))

    @property
    def cut_short(self) -> list[str]:
        """Names of kernels that were not optimised to the end even once: their likelihoods may be too low."""
        ended = {trial.kernel for trial in self.trials if trial.has_likelihood and trial.note != CUT_SHORT}
        return [name for name in self.tried if name not in ended]


def named(kernel: Kernel | str, X: FloatArray | pd.DataFrame, y: FloatArray) -> Choice:
    """The kernel that was asked for, by name with the values to start from for these data."""
    if isinstance(kernel, Kernel):
        return Choice(repr(kernel), kernel)
    origin = best_splits(np.asarray(X), first_target(np.asarray(y))) if SPLIT in kernel else (0.0,)
    return Choice(kernel, kernel_with_origin(kernel, origin))


def first_target(y: FloatArray) -> FloatArray:
    """By which inputs are cut in two, for arc-cosine kernels."""
    return y if y.ndim == 1 else y[:, 0]


def choose(
    X: FloatArray | pd.DataFrame,
    y: FloatArray,
    *,
    noise: KnownNoise | None = None,
    time_limit: float = math.inf,
    memory_limit: int | float | str | None = None,
    seed: int = 0,
    on_trial: Callable[[Trial, KernelOptimum | None], None] = lambda trial, optimum: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Compare all kernels within this time (seconds), on at most MOST_ROWS rows, and take the most likely one.

    `noise` is what is known of these rows. Several targets [N, T] are compared by the sum of their likelihoods.
    The same seed gives the same choice, as far as the time limit allows.
    """
    timer = Timer(time_limit, clock)
    contest = Contest(np.asarray(X, dtype=np.float64), np.asarray(y), noise, timer, memory_limit, seed, on_trial)
    starts = [contest.first_starts, contest.second_starts]
    rounds = [(rows, start) for rows in contest.sizes[:1] for start in starts]
    rounds += [(rows, contest.next_starts) for rows in contest.sizes[1:]]
    standing: list[Trial] = []  # those of the last round that is complete; of the first one, whatever there is
    for number, (rows, start) in enumerate(rounds):
        names = list(COMPARED) if number < len(starts) else finalists(standing, number - len(starts))
        if number and contest.timer.left() < contest.predicted_seconds(names, rows):
            break
        trials, complete = contest.round(names, rows, start)
        if complete or not number:
            standing = [trial for trial in trials if trial.has_likelihood]
        if not complete:
            break
    if not rounds:
        contest.refuse_all(NO_MEMORY)
    if not standing:
        if any(trial.rows for trial in contest.trials):
            raise NumericalError(f"no kernel could be computed; the first one said: {contest.trials[0].note}")
        return Choice(SIMPLEST, contest.kernels[SIMPLEST], tuple(contest.trials))
    best = best_of(standing)
    kernel, optimum = contest.kernels[best.kernel], contest.optima[best.kernel]
    choice = Choice(best.kernel, kernel, tuple(contest.trials), best.rows, optimum, contest.order)
    return with_less_noise(contest, standing, choice)


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial with the highest score; of those too close to tell apart, the simplest kernel."""
    highest = max(trial.score for trial in trials)
    equals = [trial for trial in trials if trial.score >= highest - EQUAL_LIKELIHOODS]
    return min(equals, key=lambda t: (t.kernel.count("+"), t.kernel.split("+")[0] != SIMPLEST, -t.score))


def finalists(trials: Sequence[Trial], number: int) -> list[str]:
    """Names of those that go on from round to round: the best, the one that would be taken now, and `se`.

    `se` is what the others have to beat. And who would win now must be beaten on the larger subset, not left out.
    """
    ranked = sorted(trials, key=lambda trial: -trial.score)
    best = {trial.kernel for trial in ranked[: FINALISTS[min(number, len(FINALISTS) - 1)]]}
    best |= {best_of(trials).kernel, SIMPLEST}
    return [trial.kernel for trial in trials if trial.kernel in best]


class Contest:
    """Kernels that are optimised on the same rows, what was found, and the time that is left."""

    def __init__(
        self,
        X: FloatArray,
        y: FloatArray,
        noise: KnownNoise | None,
        timer: Timer,
        memory_limit: int | float | str | None,
        seed: int,
        on_trial: Callable[[Trial, KernelOptimum | None], None],
    ) -> None:
        self.timer, self.on_trial = timer, on_trial
        scaling_y = Scaling.of(y) if noise is None else noise.scaling(y)
        X, y = Scaling.of(X).apply(X), scaling_y.apply(y)
        random = np.random.default_rng(seed)
        few = random.permutation(len(y))[:SPLIT_ROWS]
        origin = tuple(best_cuts(X[few], first_target(y[few])).tolist())
        self.kernels = {name: kernel_with_origin(name, origin) for name in COMPARED}
        memory = memory_budget(memory_limit, torch.device("cpu"))
        largest = max(
            (as_kernel(kernel, X.shape[1]) for kernel in self.kernels.values()), key=partial(exact_memory, n=1)
        )
        self.sizes = [
            rows for rows in subset_sizes(len(y), MOST_ROWS, FEW_ROWS) if exact_memory(largest, rows) <= memory
        ]
        self.order = subset_order(LocalRows(X, y), self.sizes[-1], random) if self.sizes else np.arange(0)
        self.X, self.y = X[self.order], y[self.order]
        everything = None if noise is None else noise.standardised(scaling_y, torch.device("cpu"))
        self.row_noise = noise_of(everything, torch.from_numpy(self.order))
        self.numerics = DEFAULT_NUMERICS
        self.trials: list[Trial] = []
        self.optima: dict[str, KernelOptimum] = {}

    def round(self, names: Sequence[str], rows: int, starts: Starts) -> tuple[list[Trial], bool]:
        """Optimise each kernel on the first so many rows; whether there was time for all of them."""
        trials = [self._attempt(name, rows, starts) for name in names]
        self.trials += trials
        return trials, not any(trial.note in (UNTRIED, CUT_SHORT) for trial in trials)

    def predicted_seconds(self, names: Sequence[str], rows: int) -> float:
        """What a round may take, from what its kernels took last."""
        last = {trial.kernel: trial for trial in self.trials}
        seconds = [last[name].seconds * (rows / last[name].rows) ** COST_POWER for name in names if last[name].rows]
        return float(sum(seconds))

    def begin_again(self, numerics: Numerics, share: float) -> None:
        """Other bounds on the noise, nothing found yet, and so much of the time limit on top of what is left."""
        self.numerics, self.optima = numerics, {}
        self.timer = Timer(self.timer.left() + share * self.timer.time_limit, self.timer.clock)

    def followed(self, name: str, rows: int) -> KernelOptimum | None:
        """Where a kernel leads from a smooth start through subsets up to so many rows, if that can be computed.

        The smallest subset is left out: with so few rows next to no noise explains anything. TimeIsUpError says that
        time is, before the last of them.
        """
        sizes = [size for size in self.sizes if size <= rows]
        for size in sizes[1:] or sizes:
            trial = self._attempt(name, size, self.next_starts if name in self.optima else _smooth_start)
            self.trials.append(trial)
            if trial.note == UNTRIED or (trial.note == CUT_SHORT and size < rows):
                raise TimeIsUpError
        found = self.optima.get(name)
        return found if found is not None and found.rows == rows else None

    def model(self, optimum: KernelOptimum) -> ExactPosterior:
        """The exact GP of the rows that an optimum was found on."""
        return self._objective(optimum.name, optimum.rows).factorise(optimum.kernel, optimum.noise_variance)

    def refuse_all(self, note: str) -> None:
        """Record that nothing could be tried."""
        self.trials += [Trial(name, -math.inf, 0, 0.0, note) for name in COMPARED]

    # ---- where to start; of several places, from the one with the highest likelihood -------------------------------

    def first_starts(self, name: str, layout: ParameterLayout) -> list[FloatArray]:
        """A smooth one; for a sum, where its simple part has ended: from elsewhere it often ends up linear."""
        return self._sums(name, layout, [Linear(1.0 / layout.n_inputs)]) or [_smooth(layout)]

    def second_starts(self, name: str, layout: ParameterLayout) -> list[FloatArray]:
        """A rough one; for a sum the smooth one."""
        if name in SIMPLE:
            return [rough_start(layout, layout.pack(layout.kernel, START_NOISE), range(layout.n_inputs))]
        return [_smooth(layout)]

    def next_starts(self, name: str, layout: ParameterLayout) -> list[FloatArray]:
        """Where the last subset has led; for a sum also where this one has led its simple part."""
        before = self.optima[name]
        linear = before.kernel.parts[-1:] if isinstance(before.kernel, Composite) else ()
        own = layout.pack(before.kernel, before.noise_variance)
        return [own, *self._sums(name, layout, [*linear, Linear(1.0 / layout.n_inputs)])]

    def _sums(self, name: str, layout: ParameterLayout, linear: Sequence[Kernel]) -> list[FloatArray]:
        """The simple part of a sum, as it was found, with linear parts; nothing if this is no sum."""
        part = self.optima.get(name.removesuffix(LINEAR))
        if part is None or part.name == name:
            return []
        return [layout.pack(layout.check(part.kernel + other), part.noise_variance) for other in linear]

    # ---- one kernel -------------------------------------------------------------------------------------------------

    def _attempt(self, name: str, rows: int, starts: Starts) -> Trial:
        """Optimise from a start on the first so many rows; what was found on them before is kept if it is better."""
        if self.timer.left() <= 0.0:
            return self._tell(Trial(name, -math.inf, 0, 0.0, UNTRIED))
        started = self.timer.seconds()
        objective = self._objective(name, rows)
        places, note = starts(name, objective.layout), ""
        try:
            theta = places[0] if len(places) == 1 else min(places, key=lambda place: objective(place)[0])
            optimum = minimise(
                LogCoordinates.objective(objective),
                LogCoordinates.from_theta(theta),
                bounds=LogCoordinates.bounds(objective.layout.bounds),
                time_limit=self.timer.left(),
                settings=SETTINGS,
                clock=self.timer.clock,
            )
            kernel, noise_variance = objective.layout.unpack(LogCoordinates.to_theta(optimum.theta))
            self._keep(KernelOptimum(name, kernel, noise_variance, -optimum.value, rows))
            note = "" if self.numerics is DEFAULT_NUMERICS else LITTLE_NOISE
            note = CUT_SHORT if optimum.reason is OptimiserEnd.TIME_LIMIT else note
        except NumericalError as error:
            note = str(error)
        best = self.optima.get(name)
        likelihood = best.likelihood if best is not None and best.rows == rows else -math.inf
        seconds = self.timer.seconds() - started
        return self._tell(Trial(name, likelihood, rows, seconds, note, len(objective.theta0)))

    def _objective(self, name: str, rows: int) -> ExactObjective:
        data, noise = (self.X[:rows], self.y[:rows]), noise_of(self.row_noise, slice(rows))
        return ExactObjective(self.kernels[name], START_NOISE, *data, row_noise=noise, numerics=self.numerics)

    def _keep(self, optimum: KernelOptimum) -> None:
        before = self.optima.get(optimum.name)
        if before is None or before.rows != optimum.rows or optimum.likelihood > before.likelihood:
            self.optima[optimum.name] = optimum

    def _tell(self, trial: Trial) -> Trial:
        self.on_trial(trial, self.optima.get(trial.kernel))
        return trial


def _smooth_start(_: str, layout: ParameterLayout) -> list[FloatArray]:
    return [_smooth(layout)]


def _smooth(layout: ParameterLayout) -> FloatArray:
    kernel, _ = layout.unpack(with_less_influence(layout, layout.pack(layout.kernel, START_NOISE)))
    return layout.pack(kernel, SMOOTH_NOISE)
