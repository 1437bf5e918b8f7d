"""From a prepared table to a model, within one time limit: choose a kernel, train, test, and train again on all rows.

The model is tested before the last training, on rows that it has not seen. Training grows with the cube of the rows at
most, and has its share of the time accordingly: what the limits allow without the test rows, they allow with them.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from nearexact.certificate import NEAR_EXACT
from nearexact.estimators import GPRegressor
from nearexact.evidence import CERTIFIED_GAP
from nearexact.gp.affordable import affordable_method
from nearexact.gp.safety import NumericalError
from nearexact.gp.stages import TrainingEnd
from nearexact.gp.starts import Start
from nearexact.kernels import Kernel
from nearexact.kernels.base import as_kernel
from nearexact.known_noise import KnownNoise
from nearexact.limits import parse_bytes
from nearexact.progress import ShownTime
from nearexact.scaling import Scaling
from nearexact.tables.conclusions import time_was_used
from nearexact.tables.evaluation import Evaluation, evaluate
from nearexact.tables.kernel_choice import SHARE_OF_TIME, UNTRIED, Choice, KernelOptimum, Trial, choose, named
from nearexact.tables.kernel_names import AUTO, COMPARED
from nearexact.tables.recipe import Prepared
from nearexact.typing import FloatArray, MemoryLimit

SHORTEST_TRAINING = 1e-3  # seconds, where no time is left: enough for a model, not for a good one
ALONE_SHARE = 0.9  # of what is left, for a model that is not trained again: testing it takes time, too
NOISE = "no better than noise"  # a verdict
METHODS = ("cholesky", "iterative", "sparse")  # the nearest to the exact GP first


@dataclass(frozen=True, eq=False)
class Found:
    """A fitted model, the kernel that was chosen for it, and how well it predicts."""

    model: GPRegressor
    choice: Choice
    evaluation: Evaluation | None = None  # of the model that was tested; not if there was none before an interruption
    refitted: bool = False  # whether the model was trained on all rows after that
    interrupted: bool = False


@dataclass(frozen=True)
class SearchLimits:
    """What a search may take, and how the user has written that down."""

    seconds: float
    memory: MemoryLimit
    written: str | None  # the time


class ModelSearch:
    """One search. `run` does it; Ctrl-C ends it with the best model so far, if there is any."""

    def __init__(
        self,
        prepared: Prepared,
        limits: SearchLimits,
        *,
        refit: bool,
        seed: int,
        progress: bool,
        on_event: Callable[[str], None],
    ) -> None:
        self.prepared, self.limits, self.seed = prepared, limits, seed
        self.refit = refit and len(prepared.y_test) > 0
        self.progress, self.on_event = progress, on_event
        self.X, self.y, self.noise = prepared.recipe.frame(prepared.train), prepared.y_train, prepared.noise_train
        self.notes: list[str] = []
        self._trials: list[Trial] = []
        self._best: KernelOptimum | None = None
        self._best_so_far = (0, -math.inf)  # rows and score: more rows say more
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Since the search started."""
        return time.perf_counter() - self._started

    def run(self, kernel: Kernel | str) -> Found:
        """Choose a kernel, unless this is one or the name of one, and train."""
        try:
            choice = self._choice(kernel)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            choice = Choice(self._best.name, self._best.kernel, tuple(self._trials))
            return Found(self._untrained(self._best), choice, interrupted=True)
        found = self._first(choice)
        if found.interrupted:
            return found
        model = found.model
        try:
            found = replace(found, evaluation=evaluate(model, self.prepared))
            if self.refit:
                found = self._refitted(found)
            self._note_limit(found.model)
        except KeyboardInterrupt:  # what is finished is kept
            if found.evaluation is not None and self.refit:
                self.notes.append("not trained on all rows: that was interrupted")
            return replace(found, interrupted=True)
        return found

    # ---- training --------------------------------------------------------------------------------------------------

    def _first(self, choice: Choice) -> Found:
        """The model that is tested. With less noise than usual it must be as good as rows left out have promised."""
        seconds, less_noise = self._first_seconds(choice.kernel), choice.less_noise
        if less_noise is not None and self._way(choice.kernel, seconds) != "cholesky":
            return self._first(less_noise.instead)
        model = self._model(choice, seconds, self.limits.memory)
        try:
            ended = _fitted(model, self.X, self.y, choice.start, self.noise)
        except NumericalError as error:
            if less_noise is None:
                raise
            self.on_event(f"less noise than usual was tried: {error}: trained again")
            return self._first(less_noise.instead)
        if ended and less_noise is not None and not less_noise.is_borne_out_by(model._posterior):
            self.on_event("less noise than usual was tried, and rows left out are predicted worse: trained again")
            return self._first(less_noise.instead)
        return Found(model, choice, interrupted=not ended)

    def _refitted(self, found: Found) -> Found:
        """The same after training on all rows, from the hyperparameters that were found; as it is if that fails."""
        tested = found.model
        if tested.certificate_.verdict == NOISE:
            self.notes.append("not trained again on all rows: nothing was learnt that could become better")
            return found
        values, learnt = self.prepared.all_rows()
        left = self._left()
        self.on_event(f"tested; training on all {len(values)} rows{self._of_limit(left)}")
        memory = self.limits.memory
        if memory is not None:  # the tested model is kept until there is a better one
            memory = max(parse_bytes(memory) - _held_bytes(tested), 1)
        model = self._model(found.choice, left, memory)
        start = (tested.kernel_, tested.noise_variance_)
        try:
            ended = _fitted(model, self.prepared.recipe.frame(values), learnt.y, start, learnt.noise)
        except (ValueError, NumericalError) as error:  # the memory limit may be too low for all rows
            self.notes.append(f"not trained on all rows: {error}")
            return found
        if not ended:
            self.notes.append("not trained on all rows: that was interrupted")
            return replace(found, interrupted=True)
        if model.certificate_.verdict == NOISE:
            self.notes.append("not trained on all rows: with those that were kept back, nothing is learnt any longer")
            return found
        less_noise = found.choice.less_noise
        if less_noise is not None and not less_noise.is_borne_out_by(model._posterior):
            self.notes.append("not trained on all rows: with so little noise, rows left out were predicted worse")
            return found
        if _is_lesser(model, tested):
            self.notes.append("not trained on all rows: the limits allow only a lesser model of these")
            return found
        return replace(found, model=model, refitted=True)

    def _first_seconds(self, kernel: Kernel) -> float:
        """For the model that is tested: a share of what is left, or all of it where two models would be lesser ones."""
        left = self._left()
        if not self.refit or math.isinf(left):
            return left
        growth = (1.0 + len(self.prepared.y_test) / len(self.y)) ** 3
        share = left / (1.0 + growth)
        if self._way(kernel, share) == "sparse" and self._way(kernel, left) != "sparse":
            self.refit = False
            self.notes.append(
                f"not trained on all rows: {self.limits.written} are enough for one good model, not for two"
            )
            return ALONE_SHARE * self._left()
        return share

    def _way(self, kernel: Kernel, seconds: float) -> str:
        """Which way to the exact GP so much time allows."""
        X, y = np.asarray(self.X, dtype=np.float64), np.asarray(self.y)
        scaled_X, scaled_y = (torch.from_numpy(Scaling.of(values).apply(values)) for values in (X, y))
        memory = None if self.limits.memory is None else parse_bytes(self.limits.memory)
        return affordable_method(as_kernel(kernel, X.shape[1]), scaled_X, scaled_y, seconds, memory)

    def _left(self) -> float:
        return max(self.limits.seconds - self.seconds(), SHORTEST_TRAINING)

    def _of_limit(self, seconds: float) -> str:
        return "" if math.isinf(seconds) else f", {seconds:.0f} s left of {self.limits.written}"

    def _model(self, choice: Choice, seconds: float, memory: MemoryLimit) -> GPRegressor:
        less_noise = choice.less_noise
        model = GPRegressor(
            choice.kernel,
            method="auto" if less_noise is None else "cholesky",
            noise_bounds=None if less_noise is None else less_noise.bounds,
            time_limit=seconds if math.isfinite(seconds) else None,
            memory_limit=memory,
            random_state=self.seed,
            progress=self.progress,
        )
        model._shown_time = ShownTime(self.limits.written, self.seconds())
        return model

    def _untrained(self, optimum: KernelOptimum) -> GPRegressor:
        """What can be had without further training from what the choice has found."""
        model = self._model(Choice(optimum.name, optimum.kernel), SHORTEST_TRAINING, self.limits.memory)
        _fitted(model, self.X, self.y, (optimum.kernel, optimum.noise_variance), self.noise)
        return model

    def _note_limit(self, model: GPRegressor) -> None:
        """Say which limit has ended the training, if one has, as the user wrote it."""
        memory = self.limits.memory
        limits: dict[str, str] = {
            TrainingEnd.TIME_LIMIT: f"the time limit of {self.limits.written}",
            TrainingEnd.MEMORY_LIMIT: f"the memory limit of {'half of what is free' if memory is None else memory}",
            TrainingEnd.MAX_INDUCING: f"the limit of {model.max_inducing} inducing points",
            TrainingEnd.MAX_ITERATIONS: "the largest number of iterations",
        }
        ended = model.history_[-1].ended
        limit = limits.get(ended)
        if limit is None or model.certificate_.verdict in NEAR_EXACT:
            return
        if ended == TrainingEnd.TIME_LIMIT and not time_was_used(self.limits.written, self.seconds()):
            return
        if model.method_ == "sparse":
            points = len(model.inducing_points_)
            self.notes.append(f"{limit} ended the training at {points} inducing points, before it was near-exact")
        else:
            self.notes.append(f"{limit} ended the training before the best hyperparameters were found")

    # ---- the choice of a kernel ------------------------------------------------------------------------------------

    def _choice(self, kernel: Kernel | str) -> Choice:
        if kernel != AUTO:
            return named(kernel, self.X, self.y)
        choice = choose(
            self.X,
            self.y,
            noise=KnownNoise.of(self.noise.get("noise_variance"), self.noise.get("sample_weight"), self.y),
            time_limit=SHARE_OF_TIME * self.limits.seconds,
            memory_limit=self.limits.memory,
            seed=self.seed,
            on_trial=self._tried,
        )
        if not choice.rows:
            reason = "no time was left" if choice.trials[0].note == UNTRIED else "the memory limit is too low"
            self.notes.append(f"{reason} to choose a kernel: {choice.name} was taken untried")
            return choice
        rows = f"{choice.rows} of {len(self.y)}" if choice.rows < len(self.y) else "all"
        self.on_event(f"kernel: {choice.name}, from {len(choice.tried)} by exact likelihoods of {rows} rows")
        if choice.untried:
            names = ", ".join(choice.untried)
            self.notes.append(f"no likelihood of {len(choice.untried)} of {len(COMPARED)} kernels is known: {names}")
        if choice.cut_short:
            names = ", ".join(choice.cut_short)
            self.notes.append(f"no time was left to optimise {names} to the end: the likelihood may be too low")
        return choice

    def _tried(self, trial: Trial, optimum: KernelOptimum | None) -> None:
        self._trials.append(trial)
        if not trial.has_likelihood:
            self.on_event(f"  {trial.kernel:<22} {trial.note}")
            return
        figures = f"exact likelihood {trial.bound:10.1f} of {trial.rows:4} rows {trial.seconds:6.1f} s"
        self.on_event(f"  {trial.kernel:<22} {figures}  {trial.note}".rstrip())
        if optimum is not None and (trial.rows, trial.score) > self._best_so_far:
            self._best, self._best_so_far = optimum, (trial.rows, trial.score)


def _fitted(model: GPRegressor, X: object, y: FloatArray, start: Start | None, noise: Mapping[str, Any]) -> bool:
    """Fit the model; whether that came to its end. Without a model the interruption is passed on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a note says the same in the user's words
            model.fit(X, y, start=start, **noise)
    except KeyboardInterrupt:
        if not hasattr(model, "certificate_"):
            raise
        return False
    return True


def _is_lesser(model: GPRegressor, other: GPRegressor) -> bool:
    """Whether a model is further from the exact GP than another one of fewer rows, or explains less.

    One by Cholesky never is: it starts from the other's hyperparameters, and keeps the best that it finds.
    """
    if METHODS.index(model.method_) > METHODS.index(other.method_):
        return True
    lower, other_lower = (m.certificate_.lower / m.certificate_.n for m in (model, other))
    return model.method_ != "cholesky" and lower < other_lower - CERTIFIED_GAP


def _held_bytes(model: GPRegressor) -> int:
    parts = vars(model._posterior).values()
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
