"""More rows from a table for a model that was fitted to one, at the hyperparameters that it has."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nearexact.tables.dialect import Spelling
from nearexact.tables.predicting import opened
from nearexact.tables.reading import Source, open_table
from nearexact.tables.recipe import RECIPE, Recipe, more_rows
from nearexact.tables.summary import plain

if TYPE_CHECKING:
    from nearexact.tables.predictor import Model


@dataclass(frozen=True, eq=False)
class Updated:
    """A model with more rows, how many were added, and notes on those that were dropped."""

    model: Model
    rows: int
    notes: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, as `nearexact update` does."""
        self.model.save(path)


def update(
    model: str | os.PathLike[str] | tuple[Model, Recipe],
    path: Source,
    *,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
) -> Updated:
    """Add the rows of a CSV or Parquet file, or of a data frame, to a model that was fitted to such a table.

    Hyperparameters stay as they are; `GPRegressor.update` has the details, and warns where they should be learnt anew.
    The table needs the columns of the fit, targets, known noise and weights included. A model from a file stays as it
    is there until the result is saved.
    """
    recipe, load = opened(model)
    file = open_table(path, spelling, wanted=[*recipe.names, *recipe.learnt_from], usual=recipe.spelling)
    values, learnt, notes = more_rows(file, recipe)
    estimator = load()
    estimator.update(recipe.frame(values), learnt.y, **learnt.noise)
    estimator.metadata_ = _with_news(estimator, len(values))
    return Updated(estimator, len(values), tuple(notes))


def _with_news(model: Model, rows: int) -> dict[str, Any]:
    """What is kept with the model, with a summary that knows of the new rows."""
    kept, certificate = model.metadata_[RECIPE], model.certificate_
    summary = kept.get("summary")
    if not isinstance(summary, dict):
        return model.metadata_
    names = ("lower", "upper", "gap_per_point", "verdict", "doubt", "about_theta")
    evidence = None if certificate.evidence is None else asdict(certificate.evidence)
    news = {name: getattr(certificate, name) for name in names} | {"evidence": evidence, "elbo": model.elbo_}
    news["m"] = len(model.inducing_points_)
    note = f"{rows} rows were added later: the certificate is that of all {certificate.n}, all else is from before that"
    news["notes"] = [*summary.get("notes", ()), note]
    return {**model.metadata_, RECIPE: {**kept, "summary": {**summary, **plain(news)}}}
