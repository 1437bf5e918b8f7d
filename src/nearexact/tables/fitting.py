"""A model from a table: read it, choose a kernel, fit, test, and fit to all rows. `nearexact fit` is this and writing
the results.

What can be found wrong in options and table is found before torch is imported, which takes seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from nearexact.files import check_output, write_text
from nearexact.limits import parse_bytes, parse_seconds, written
from nearexact.tables.columns import MAX_CATEGORIES
from nearexact.tables.dialect import Spelling
from nearexact.tables.kernel_names import AUTO, check_kernel
from nearexact.tables.predicting import LEVEL, predict_frame
from nearexact.tables.reading import Source, open_table
from nearexact.tables.recipe import RECIPE, Missing, Prepared, Split, prepare, target_names
from nearexact.tables.summary import Summary

if TYPE_CHECKING:
    from nearexact.estimators import GPRegressor
    from nearexact.kernels import Kernel
    from nearexact.tables.evaluation import Evaluation
    from nearexact.tables.kernel_choice import Choice


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that was fitted to a table, with its data, its evaluation and its summary."""

    model: GPRegressor
    prepared: Prepared
    choice: Choice
    evaluation: Evaluation | None  # of the model before it was fitted to all rows; not after an early interruption
    summary: Summary
    interrupted: bool = False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, recipe and summary to one file, for `nearexact predict` and `nearexact.load`."""
        self.model.save(path)

    def predict(self, frame: pd.DataFrame, *, level: float = LEVEL, missing: Missing | None = None) -> pd.DataFrame:
        """Mean, std, lower and upper for each row of a data frame; see `nearexact.tables.predict_frame`."""
        return predict_frame((self.model, self.prepared.recipe), frame, level=level, missing=missing)

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page about the fit of one target."""
        if self.prepared.recipe.several:
            raise ValueError(f"a page is about one target, got {len(self.prepared.recipe.several)}")
        from nearexact.tables.fit_page import fit_page

        write_text(check_output(path), fit_page(self))


def fit(
    path: Source,
    target: str | Sequence[str],
    *,
    kernel: Kernel | str = AUTO,
    time_limit: float | str | None = 600,
    memory_limit: int | float | str | None = None,
    test_fraction: float = 0.15,
    refit: bool = True,
    missing: Missing = "error",
    ignore: Collection[str] = (),
    noise_column: str | None = None,
    weight_column: str | None = None,
    max_categories: int = MAX_CATEGORIES,
    day_first: bool | None = None,
    seed: int = 0,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    progress: bool = False,
    on_event: Callable[[str], None] = lambda message: None,
) -> Fitted:
    """Fit a model of the target column to all other columns of a CSV or Parquet file, or of a data frame.

    Text, categories, dates, booleans and missing cells become inputs by a recipe that is kept with the model.

    Several targets, "a,b" or ["a", "b"], share their hyperparameters. The noise column has the variance of the noise
    that is known of each row, in the units of the target, and the weight column its weight; see `GPRegressor.fit`.
    The model is tested on rows that were kept back, and with `refit` then fitted to all rows; the scores stay those of
    the test. `time_limit` is for the choice of a kernel and both trainings. After Ctrl-C the best model so far is
    returned as `interrupted`; without any, the interruption is passed on.
    """
    check_kernel(kernel)
    seconds, split = parse_seconds(time_limit), Split(test_fraction, seed)
    if memory_limit is not None:
        parse_bytes(memory_limit)
    names = target_names(target, ())
    if not names:
        raise ValueError("a target is needed, got none")
    file = open_table(path, spelling, wanted={target, *names} if isinstance(target, str) else set(names))
    prepared = prepare(
        file,
        target,
        ignore=ignore,
        missing=missing,
        max_categories=max_categories,
        day_first=day_first,
        noise_column=noise_column,
        weight_column=weight_column,
        split=split,
    )
    recipe = prepared.recipe
    on_event(
        f"{file}; {len(prepared.y_train)} rows to train and {len(prepared.y_test)} to test,"
        f" {_counted(len(recipe.columns), 'column')} as {_counted(len(recipe.inputs), 'input')}"
    )
    from nearexact.tables.model_search import ModelSearch, SearchLimits  # only here, since they need torch
    from nearexact.tables.summarising import summarise

    limits = SearchLimits(seconds, memory_limit, written(time_limit, " s"))
    search = ModelSearch(prepared, limits, refit=refit, seed=seed, progress=progress, on_event=on_event)
    found = search.run(kernel)
    figures = partial(
        summarise,
        prepared=prepared,
        seconds=search.seconds(),
        time_limit=limits.written,
        memory_limit=written(memory_limit, " bytes"),
        notes=search.notes,
    )
    try:
        summary = figures(found)
    except KeyboardInterrupt:  # a finished model is not lost because of its figures, which take seconds
        found = replace(found, interrupted=True)
        summary = figures(found)
    model = found.model
    # The display is for this fit, not for those who load the model; and limits are those that the user gave.
    model._shown_time = None
    model.set_params(progress=False, time_limit=time_limit, memory_limit=memory_limit)
    model.metadata_ = {RECIPE: {**recipe.to_json(), "summary": summary.to_json()}}
    return Fitted(model, prepared, found.choice, found.evaluation, summary, found.interrupted)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def check_one_target(path: Source, target: str, spelling: Spelling = Spelling()) -> None:  # noqa: B008
    """Raise a ValueError unless one column is meant: before a fit whose page could not be written."""
    names = target_names(target, ())
    if len(names) > 1 and target not in open_table(path, spelling, {target, *names}).columns:
        raise ValueError(f"a report is about one target, got {len(names)}: leave it out, or fit them one by one")
