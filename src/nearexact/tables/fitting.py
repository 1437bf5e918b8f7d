"""A model from a table: read it, choose a kernel, fit, and test. `nearexact fit` is this and writing the results."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from nearexact.estimators import GPRegressor
from nearexact.files import check_output, write_text
from nearexact.kernels import Kernel
from nearexact.limits import parse_bytes, parse_seconds
from nearexact.tables.columns import MAX_CATEGORIES
from nearexact.tables.dialect import Spelling
from nearexact.tables.evaluation import Evaluation, evaluate
from nearexact.tables.kernel_choice import SHARE_OF_TIME, UNTRIED, Choice, KernelOptimum, Trial, choose, named
from nearexact.tables.kernel_names import AUTO, KERNELS, check_kernel
from nearexact.tables.predicting import LEVEL, predict_frame
from nearexact.tables.reading import Source, open_table
from nearexact.tables.recipe import RECIPE, Missing, Prepared, Split, prepare
from nearexact.tables.summary import Summary, summarise

SHORTEST_TRAINING = 1e-3  # seconds, where no time is left: enough for a model, not for a good one


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that was fitted to a table, with its data, its evaluation and its summary."""

    model: GPRegressor
    prepared: Prepared
    choice: Choice
    evaluation: Evaluation | None  # not after an interruption
    summary: Summary
    interrupted: bool = False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, recipe and summary to one file, for `nearexact predict` and `nearexact.load`."""
        self.model.save(path)

    def predict(self, frame: pd.DataFrame, *, level: float = LEVEL, missing: Missing | None = None) -> pd.DataFrame:
        """Mean, std, lower and upper for each row of a data frame; see `nearexact.tables.predict_frame`."""
        return predict_frame((self.model, self.prepared.recipe), frame, level=level, missing=missing)

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page about the fit."""
        from nearexact.tables.fit_page import fit_page

        write_text(check_output(path), fit_page(self))


def fit(
    path: Source,
    target: str,
    *,
    kernel: Kernel | str = AUTO,
    time_limit: float | str | None = 600,
    memory_limit: int | float | str | None = None,
    test_fraction: float = 0.15,
    missing: Missing = "error",
    ignore: Collection[str] = (),
    max_categories: int = MAX_CATEGORIES,
    day_first: bool | None = None,
    seed: int = 0,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    progress: bool = False,
    on_event: Callable[[str], None] = lambda message: None,
) -> Fitted:
    """Fit a model of the target column to all other columns of a CSV or Parquet file, or of a data frame.

    Text, categories, dates, booleans and missing cells become inputs by a recipe that is kept with the model.
    `time_limit` is for the choice of a kernel and the training. After Ctrl-C the best model so far is returned as
    `interrupted`; without any, the interruption is passed on.
    """
    check_kernel(kernel)
    seconds, split = parse_seconds(time_limit), Split(test_fraction, seed)
    if memory_limit is not None:
        parse_bytes(memory_limit)
    file = open_table(path, spelling, wanted={target})
    prepared = prepare(
        file,
        target,
        ignore=ignore,
        missing=missing,
        max_categories=max_categories,
        day_first=day_first,
        split=split,
    )
    recipe = prepared.recipe
    on_event(
        f"{file}; {len(prepared.y_train)} rows to train and {len(prepared.y_test)} to test,"
        f" {len(recipe.columns)} columns become {len(recipe.inputs)} inputs"
    )
    search = _Search(prepared, seconds, memory_limit, seed, progress, on_event)
    model, choice, interrupted = search.run(kernel)
    evaluation = None if interrupted else evaluate(model, prepared)
    summary = summarise(model, prepared, choice, evaluation, search.seconds(), search.notes)
    model.set_params(progress=False)  # the display is for this fit, not for those who load the model
    model.metadata_ = {RECIPE: {**recipe.to_json(), "summary": summary.to_json()}}
    return Fitted(model, prepared, choice, evaluation, summary, interrupted)


class _Search:
    """Choice of a kernel and training, within one time limit."""

    def __init__(
        self,
        prepared: Prepared,
        time_limit: float,
        memory_limit: int | float | str | None,
        seed: int,
        progress: bool,
        on_event: Callable[[str], None],
    ) -> None:
        self.X, self.y = prepared.recipe.frame(prepared.train), prepared.y_train
        self.time_limit, self.memory_limit, self.seed = time_limit, memory_limit, seed
        self.progress, self.on_event = progress, on_event
        self.notes: list[str] = []
        self._trials: list[Trial] = []
        self._best: KernelOptimum | None = None
        self._best_so_far = (0, -math.inf)  # rows and score: more rows say more
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Since the search started."""
        return time.perf_counter() - self._started

    def run(self, kernel: Kernel | str) -> tuple[GPRegressor, Choice, bool]:
        """The fitted model, the kernel that it has, and whether it was interrupted."""
        try:
            choice = self._choice(kernel)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            return self._untrained(self._best), Choice(self._best.name, self._best.kernel, tuple(self._trials)), True
        model = self._model(choice.kernel, max(self.time_limit - self.seconds(), SHORTEST_TRAINING))
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", ConvergenceWarning)
                model.fit(self.X, self.y, start=choice.start)
            self.notes += [str(warning.message) for warning in caught if warning.category is ConvergenceWarning]
        except KeyboardInterrupt:
            if not hasattr(model, "certificate_"):
                raise
            return model, choice, True
        return model, choice, False

    def _model(self, kernel: Kernel, seconds: float) -> GPRegressor:
        return GPRegressor(
            kernel,
            time_limit=seconds if math.isfinite(seconds) else None,
            memory_limit=self.memory_limit,
            random_state=self.seed,
            progress=self.progress,
        )

    def _untrained(self, optimum: KernelOptimum) -> GPRegressor:
        """What can be had without further training from what the choice has found."""
        model = self._model(optimum.kernel, SHORTEST_TRAINING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(self.X, self.y, start=(optimum.kernel, optimum.noise_variance))

    def _choice(self, kernel: Kernel | str) -> Choice:
        if kernel != AUTO:
            return named(kernel, self.X, self.y)
        limit = SHARE_OF_TIME * self.time_limit
        choice = choose(
            self.X, self.y, time_limit=limit, memory_limit=self.memory_limit, seed=self.seed, on_trial=self._tried
        )
        if not choice.rows:
            reason = "no time was left" if choice.trials[0].note == UNTRIED else "the memory limit is too low"
            self.notes.append(f"{reason} to choose a kernel: {choice.name} was taken untried")
            return choice
        rows = f"{choice.rows} of {len(self.y)}" if choice.rows < len(self.y) else "all"
        self.on_event(f"kernel: {choice.name}, from {len(choice.tried)} by exact likelihoods of {rows} rows")
        if choice.untried:
            names = ", ".join(choice.untried)
            self.notes.append(f"no likelihood of {len(choice.untried)} of {len(KERNELS)} kernels is known: {names}")
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
