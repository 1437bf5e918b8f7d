"""From a table to the inputs and targets of a model, by a recipe that is kept with the model and used again to predict.

Columns are matched by name, in any order; a file may have more of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from nearexact.tables import cells
from nearexact.tables.columns import MAX_CATEGORIES, Column, problem, recognise, together
from nearexact.tables.dialect import Spelling
from nearexact.tables.naming import MISSING_ADVICE, listed, missing_values, reasons, some
from nearexact.tables.reading import TableFile, read
from nearexact.tables.remarks import counts_rows, far_targets, looks_like_an_index, number_remarks, stray_cells
from nearexact.typing import FloatArray

Missing = Literal["error", "drop", "median"]
RECIPE = "recipe"  # its key in the metadata of a model
MISSING_POLICIES = ("error", "drop", "median")
AS_FITTED = "fill them in, or leave these rows out: the model was fitted to rows without missing values"
FEWEST_ROWS = 10  # with fewer, neither the model nor its test says anything


@dataclass(frozen=True)
class Split:
    """Which rows are kept back to test: a share of them, drawn at random with this seed."""

    test_fraction: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.test_fraction < 1.0:
            raise ValueError(f"the test fraction must be from 0 up to, but not, 1, got {self.test_fraction}")

    def rows(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on and rows to test on, each in the order of the file."""
        n_test = round(self.test_fraction * n)
        if self.test_fraction > 0.0:
            n_test = min(max(n_test, 1), n - 2)
        order = np.random.default_rng(self.seed).permutation(n)
        return np.sort(order[n_test:]), np.sort(order[:n_test])


@dataclass(frozen=True)
class Recipe:
    """All that it takes to turn the columns of a file into inputs of a model."""

    target: str
    columns: tuple[Column, ...]
    missing: Missing = "error"
    left_out: dict[str, str] = field(default_factory=dict)  # columns by name, and why
    split: Split = Split()
    spelling: Spelling = field(default_factory=Spelling)  # of the file that it was made from, if that was CSV
    several: tuple[str, ...] = ()  # targets, where there is more than one: `target` then names them all
    noise_column: str | None = None  # with the variance of each row's known noise
    weight_column: str | None = None
    target_signs: tuple[str, ...] | None = None  # of per cent or of a currency, for each target; earlier releases: None

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the columns that are predicted."""
        return self.several or (self.target,)

    @property
    def learnt_from(self) -> list[str]:
        """Names of the columns that a file to train on must have besides the inputs."""
        return [*self.targets, *self.noise_roles]

    @property
    def noise_roles(self) -> dict[str, str]:
        """Columns that say something about the noise of each row, by name, and what."""
        roles = ((self.noise_column, "known noise"), (self.weight_column, "weights"))
        return {name: role for name, role in roles if name is not None}

    @property
    def names(self) -> list[str]:
        """Of the columns that a file must have."""
        return [column.name for column in self.columns]

    @property
    def inputs(self) -> list[str]:
        """Names of the model's inputs."""
        return [name for column in self.columns for name in column.inputs]

    def check_columns(self, file: TableFile, *, with_target: bool = False) -> None:
        """Raise a ValueError that names what the file lacks."""
        needed = [*self.names, *self.learnt_from] if with_target else self.names
        present = set(file.columns)
        lacking = [name for name in needed if name not in present]
        if lacking:
            raise ValueError(f"{file.name} lacks {listed('column', lacking)}; it has {some(file.columns)}")

    def values(self, frame: pd.DataFrame, decimal: str, first_row: int = 1) -> FloatArray:
        """One number per cell, [n, columns]; NaN where it is missing."""
        return np.column_stack([column.values(frame[column.name], decimal, first_row) for column in self.columns])

    def completed(self, values: FloatArray, missing: Missing, where: str = "") -> FloatArray:
        """Values with the missing ones filled in, or left NaN where their rows are to be dropped, or an error."""
        counts = np.isnan(values).sum(0)
        if missing == "median":
            return np.where(np.isnan(values), [column.fill for column in self.columns], values)
        if missing == "error" and counts.any():
            raise missing_values(dict(zip(self.names, counts.tolist(), strict=True)), where)
        return values

    def expand(self, values: FloatArray) -> FloatArray:
        """The model's inputs, [n, D]."""
        return np.column_stack([column.expand(values[:, i]) for i, column in enumerate(self.columns)])

    def frame(self, values: FloatArray) -> pd.DataFrame:
        """The model's inputs with their names."""
        return pd.DataFrame(self.expand(values), columns=self.inputs)

    def slices(self) -> dict[str, slice]:
        """Which of the model's inputs come from which column."""
        ends = np.cumsum([len(column.inputs) for column in self.columns]).tolist()
        return {
            column.name: slice(end - len(column.inputs), end) for column, end in zip(self.columns, ends, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """As JSON-serialisable values."""
        return {
            "target": self.target,
            "columns": [column.to_json() for column in self.columns],
            "missing": self.missing,
            "left_out": self.left_out,
            "split": asdict(self.split),
            "spelling": self.spelling.to_json(),
            **({"several": list(self.several)} if self.several else {}),
            **({"noise_column": self.noise_column} if self.noise_column is not None else {}),
            **({"weight_column": self.weight_column} if self.weight_column is not None else {}),
            **({"target_signs": list(self.target_signs)} if self.target_signs is not None else {}),
        }

    @staticmethod
    def from_json(description: Any) -> Recipe:
        """The recipe that `to_json` described."""
        try:
            signs = description.get("target_signs")
            recipe = Recipe(
                target=description["target"],
                columns=tuple(Column.from_json(column) for column in description["columns"]),
                missing=description["missing"],
                left_out=dict(description["left_out"]),
                split=Split(**description["split"]),
                spelling=Spelling(**description.get("spelling", {})),
                several=tuple(description.get("several", ())),
                noise_column=description.get("noise_column"),
                weight_column=description.get("weight_column"),
                target_signs=None if signs is None else tuple(signs),
            )
            if (
                not all(isinstance(name, str) for name in (recipe.target, *recipe.learnt_from, *(signs or ())))
                or (signs is not None and len(signs) != len(recipe.targets))
                or not recipe.columns
                or recipe.missing not in MISSING_POLICIES
            ):
                raise ValueError("it is not complete")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"the model's recipe for columns is damaged: {type(error).__name__}: {error}") from error
        return recipe


@dataclass(frozen=True, eq=False)
class Learnt:
    """What is learnt from besides the inputs: targets, [n] or [n, T], and what is known about their noise."""

    y: FloatArray
    noise: dict[str, FloatArray]  # by its name as an argument of `fit`  [n] each

    def of(self, rows: np.ndarray) -> Learnt:
        """That of some rows."""
        return Learnt(self.y[rows], {name: values[rows] for name, values in self.noise.items()})

    def columns(self) -> FloatArray:
        """All of it, a column each."""
        return np.column_stack([self.y, *self.noise.values()])


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table as values, one number per cell, in two parts; `recipe.expand` turns them into inputs."""

    recipe: Recipe
    train: FloatArray
    y_train: FloatArray
    test: FloatArray
    y_test: FloatArray
    notes: tuple[str, ...]  # rows dropped, cells filled in, columns left out, and what looks odd
    index_like: tuple[str, ...] = ()  # columns that may do no more than number the rows
    far_targets: tuple[str, ...] = ()  # which targets may be mistyped, in words
    noise_train: dict[str, FloatArray] = field(default_factory=dict)  # what `fit` is told about the noise of each row
    noise_test: dict[str, FloatArray] = field(default_factory=dict)

    def all_rows(self) -> tuple[FloatArray, Learnt]:
        """Values of both parts, and what is learnt from besides, in the order of the file."""
        train, test = self.recipe.split.rows(len(self.y_train) + len(self.y_test))
        order = np.argsort(np.concatenate([train, test]))
        values, y = np.concatenate([self.train, self.test]), np.concatenate([self.y_train, self.y_test])
        noise = {name: np.concatenate([part, self.noise_test[name]]) for name, part in self.noise_train.items()}
        return values[order], Learnt(y, noise).of(order)


def prepare(
    file: TableFile,
    target: str | Sequence[str],
    *,
    ignore: Collection[str] = (),
    missing: Missing = "error",
    max_categories: int = MAX_CATEGORIES,
    day_first: bool | None = None,
    noise_column: str | None = None,
    weight_column: str | None = None,
    split: Split = Split(),  # noqa: B008  # frozen
) -> Prepared:
    """Read a table, find out what its columns are, and put some rows aside to test on.

    Kinds and categories come from the whole table; medians to fill in from the rows to train on. Several targets are
    separated by commas, or a list. Columns with known noise and weights are no inputs.
    """
    if missing not in MISSING_POLICIES:
        raise ValueError(f"missing must be one of {', '.join(MISSING_POLICIES)}, got {missing!r}")
    ignore = [ignore] if isinstance(ignore, str) else ignore
    targets = target_names(target, file.columns)
    roles = Recipe(
        ", ".join(targets),
        (),
        missing,
        split=split,
        spelling=file.spelling,
        several=targets if len(targets) > 1 else (),
        noise_column=noise_column,
        weight_column=weight_column,
    )
    _check_roles(file, roles, ignore)
    frame = read(file, [name for name in file.columns if name not in ignore])
    roles = replace(roles, target_signs=tuple(cells.sign_of(frame[name]) for name in targets))
    learnt = _learnt(frame, roles, file.decimal)
    left_out, notes = dict.fromkeys(ignore, "ignored"), number_remarks(frame, targets, file)
    columns, parts, refused = [], [], []
    for name in frame.columns.drop(roles.learnt_from):
        if cells.is_empty(frame[name]):
            left_out[name] = "empty"
            continue
        try:
            column = recognise(
                name,
                frame[name],
                file.decimal,
                max_categories=max_categories,
                day_first=day_first,
                categorical=name in file.categorical,
            )
            values = column.values(frame[name], file.decimal)
        except ValueError as error:
            refused.append(error)
            continue
        if len(np.unique(values)) < 2:  # NaN counts as one
            left_out[name] = "constant"
        elif counts_rows(name, values):
            left_out[name] = "numbers the rows"
        else:
            columns.append(column)
            parts.append(values)
            notes += stray_cells(column, frame[name], file)
    if refused:
        raise together(refused)
    if not columns:
        raise ValueError(f"{file.name} has no column to learn from besides the target {target!r}{reasons(left_out)}")
    recipe = replace(roles, columns=tuple(columns), left_out=left_out)
    prepared = _parts(recipe, np.column_stack(parts), learnt)
    used = prepared.recipe.names
    suspects = [
        c.name for c, values in zip(columns, parts, strict=True) if c.name in used and looks_like_an_index(c, values)
    ]
    notes += [
        f"{name!r} looks like an index or an id: if it does no more than number the rows, leave it out with --ignore"
        for name in suspects
    ]
    pairs = zip(targets, learnt.columns().T, strict=False)  # noise and weights come after the targets
    far = tuple(words for name, y in pairs if (words := far_targets(name, y)) is not None)
    notes += [f"{words}, further from the others than all of them vary: is it a mistake?" for words in far]
    return replace(prepared, notes=(*prepared.notes, *notes), index_like=tuple(suspects), far_targets=far)


def target_names(target: str | Sequence[str], columns: Collection[str]) -> tuple[str, ...]:
    """The columns that are meant: the one of this name or, if there is none, those that are separated by commas."""
    if not isinstance(target, str):
        if not isinstance(target, Iterable) or not all(isinstance(name, str) for name in target):
            raise ValueError(f"target must be the name of a column, or a list of names, got {target!r}")
        return tuple(target)
    return (target,) if target in columns else tuple(name.strip() for name in target.split(","))


def training_rows(file: TableFile, recipe: Recipe, n: int) -> tuple[FloatArray, Learnt]:
    """Values of the n rows that a model was trained on, and what it has learnt from besides, from its file.

    A file that has just these n rows is taken as a whole.
    """
    recipe.check_columns(file, with_target=True)
    frame = read(file, [*recipe.names, *recipe.learnt_from])
    values, learnt = recipe.values(frame, file.decimal), _learnt(frame, recipe, file.decimal)
    _check_missing(recipe, values, learnt, AS_FITTED)
    values, learnt, _ = _complete_rows(recipe, values, learnt)
    rows = np.arange(n) if len(values) == n else recipe.split.rows(len(values))[0]
    if len(rows) != n:
        raise ValueError(
            f"{file.name} is not the file that the model was fitted to: it has {len(rows)} rows to train on, not {n}"
        )
    return recipe.completed(values[rows], recipe.missing), learnt.of(rows)


def more_rows(file: TableFile, recipe: Recipe) -> tuple[FloatArray, Learnt, list[str]]:
    """Values of all rows of another file to learn from, what is learnt from besides, and what was dropped."""
    recipe.check_columns(file, with_target=True)
    frame = read(file, [*recipe.names, *recipe.learnt_from])
    values, learnt = recipe.values(frame, file.decimal), _learnt(frame, recipe, file.decimal)
    _check_missing(recipe, values, learnt, AS_FITTED)
    values, learnt, notes = _complete_rows(recipe, values, learnt)
    if not len(values):
        raise ValueError(f"{file.name} has no rows to learn from")
    return recipe.completed(values, recipe.missing), learnt, notes


def _check_roles(file: TableFile, roles: Recipe, ignore: Collection[str]) -> None:
    """Raise a ValueError if columns that are named are not there, or cannot be what they are meant to be."""
    unknown = [name for name in (*roles.learnt_from, *ignore) if name not in file.columns]
    if unknown:
        raise ValueError(f"{file.name} has no {listed('column', unknown)}; it has {some(file.columns)}")
    noise = [name for name in (roles.noise_column, roles.weight_column) if name is not None]
    learnt_from = [*roles.targets, *noise]  # with what is named twice
    if len(set(learnt_from)) < len(learnt_from):
        raise ValueError(f"targets, noise and weights must be different columns, got {some(learnt_from)}")
    for name in roles.learnt_from:
        if name in ignore:
            what = "the target" if name in roles.targets else "learnt from"
            raise ValueError(f"column {name!r} is {what} and cannot be ignored")


def _learnt(frame: pd.DataFrame, recipe: Recipe, decimal: str) -> Learnt:
    """Targets and noise as numbers, NaN where a cell is missing."""
    signs = recipe.target_signs or [None] * len(recipe.targets)
    pairs = zip(recipe.targets, signs, strict=True)
    targets = [target_values(frame[name], name, decimal, sign) for name, sign in pairs]
    arguments = {"noise_variance": recipe.noise_column, "sample_weight": recipe.weight_column}
    noise = {
        argument: _not_negative(Column(name, "number").values(frame[name], decimal), name)
        for argument, name in arguments.items()
        if name is not None
    }
    return Learnt(targets[0] if len(targets) == 1 else np.column_stack(targets), noise)


def _not_negative(values: FloatArray, name: str) -> FloatArray:
    """These variances or weights, if they can be some."""
    if (values < 0.0).any():
        at = int(np.flatnonzero(values < 0.0)[0])
        raise ValueError(f"column {name!r} has {values[at]:g} in row {at + 1}, where a number from 0 up is expected")
    return values


def target_values(series: pd.Series, name: str, decimal: str, sign: str | None = None) -> FloatArray:
    """The target as numbers, with this sign or, by default, their own; other kinds of targets cannot be predicted."""
    if not pd.api.types.is_float_dtype(series.dtype) and not cells.is_text(series):
        raise ValueError(f"the target {name!r} must hold numbers, got {series.dtype}")
    return Column(name, "number", sign=cells.sign_of(series) if sign is None else sign).values(series, decimal)


def _parts(recipe: Recipe, values: FloatArray, learnt: Learnt) -> Prepared:
    """Deal with missing values, and split the rows."""
    _check_missing(recipe, values, learnt)
    recipe, values = _varying(recipe, values, learnt)
    values, learnt, notes = _complete_rows(recipe, values, learnt)
    if len(values) < FEWEST_ROWS:
        raise ValueError(f"at least {FEWEST_ROWS} rows without missing values are needed, got {len(values)}")
    for name, y in zip(recipe.targets, learnt.columns().T, strict=False):  # noise and weights come after the targets
        if (y == y[0]).all():
            raise ValueError(f"the target {name!r} is {y[0]:g} in all rows: there is nothing to predict")
    train, test = recipe.split.rows(len(values))
    if len(train) < FEWEST_ROWS:
        raise problem(
            f"{len(train)} rows to train on are too few: {len(test)} of {len(values)} are kept back, and at least"
            f" {FEWEST_ROWS} must be left",
            "lower --test-fraction",
        )
    empty = [name for name, gone in zip(recipe.names, np.isnan(values[train]).all(0), strict=True) if gone]
    if empty:
        raise problem(f"{listed('column', empty)} has no value in the rows to train on", "leave it out with --ignore")
    columns = [column.filled_by(values[train, i]) for i, column in enumerate(recipe.columns)]
    recipe = replace(recipe, columns=tuple(columns))
    if recipe.missing == "median" and np.isnan(values).any():
        filled = {column.name: int(n) for column, n in zip(columns, np.isnan(values).sum(0), strict=True) if n}
        notes.append(f"filled in {', '.join(f'{n} cells of {name!r}' for name, n in filled.items())}")
    notes += [f"left out {name!r}: {reason}" for name, reason in recipe.left_out.items() if reason != "ignored"]
    values = recipe.completed(values, recipe.missing)
    trained, tested = learnt.of(train), learnt.of(test)
    parts = (values[train], trained.y, values[test], tested.y)
    return Prepared(recipe, *parts, tuple(notes), noise_train=trained.noise, noise_test=tested.noise)


def _varying(recipe: Recipe, values: FloatArray, learnt: Learnt) -> tuple[Recipe, FloatArray]:
    """Without columns that are constant where they are given in the rows that are kept; no row is dropped for them."""
    while True:
        kept = _complete_rows(recipe, values, learnt)[0]
        varies = np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in kept.T])
        if varies.all() or len(kept) < FEWEST_ROWS:
            return recipe, values
        blank = np.asarray(np.isnan(values).any(0))
        constant = {
            name: "constant but for blank cells" if blank[i] else "constant in the rows that are left"
            for i, name in enumerate(recipe.names)
            if not varies[i]
        }
        left_out = {**recipe.left_out, **constant}
        if not varies.any():
            raise ValueError(f"there is no column to learn from besides the target{reasons(left_out)}")
        columns = tuple(column for column, does in zip(recipe.columns, varies, strict=True) if does)
        recipe, values = replace(recipe, columns=columns, left_out=left_out), values[:, varies]


def _check_missing(recipe: Recipe, values: FloatArray, learnt: Learnt, advice: str = MISSING_ADVICE) -> None:
    """Raise a ValueError if cells are missing where that is an error."""
    counts = np.isnan(np.column_stack([values, learnt.columns()])).sum(0)
    if recipe.missing == "error" and counts.any():
        named = dict(zip([*recipe.names, *recipe.learnt_from], counts.tolist(), strict=True))
        raise missing_values(named, advice=advice)


def _complete_rows(recipe: Recipe, values: FloatArray, learnt: Learnt) -> tuple[FloatArray, Learnt, list[str]]:
    """Without rows that have no target or no weight or, if they are to be dropped, a missing value; and what was."""
    kept, notes = np.asarray(~np.isnan(learnt.columns()).any(1)), []
    if not kept.all():
        what = "a target, noise or weight" if learnt.noise else "a target"
        notes.append(f"dropped {int((~kept).sum())} rows without {what}")
    weightless = kept & (learnt.noise.get("sample_weight", np.ones(len(kept))) == 0.0)
    if weightless.any():
        notes.append(f"dropped {int(weightless.sum())} rows of weight 0")
        kept &= ~weightless
    if recipe.missing == "drop":
        whole = ~np.isnan(values).any(1)
        if (kept & ~whole).any():
            notes.append(f"dropped {int((kept & ~whole).sum())} rows with missing values")
        kept &= whole
    return values[kept], learnt.of(kept), notes
