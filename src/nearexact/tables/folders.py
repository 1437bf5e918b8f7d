"""A model from a folder of Parquet files on a Dask cluster: `nearexact fit FOLDER --dask ADDRESS`.

All columns are numbers, and all rows are trained on. What a single file gets besides (text, dates, missing cells, a
choice of kernels, a test) would need all rows in one place.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearexact.tables.columns import Column
from nearexact.tables.kernel_names import AUTO, check_kernel
from nearexact.tables.recipe import RECIPE, Recipe, Split, target_names

if TYPE_CHECKING:
    from nearexact.estimators import GPRegressor
    from nearexact.kernels import Kernel

KERNEL = "se"  # where none is given


def fit_folder(
    folder: str | os.PathLike[str],
    target: str,
    *,
    dask: str,
    kernel: Kernel | str = AUTO,
    time_limit: float | str | None = 600,
    memory_limit: int | float | str | None = None,
    ignore: Collection[str] = (),
    seed: int = 0,
    progress: bool = False,
    resume: str | os.PathLike[str] | None = None,
) -> GPRegressor:
    """Fit a sparse GP to the columns of a folder's Parquet files; `dask` is an address, "local" or "local:N".

    The model has a recipe for its columns, so that `nearexact predict` takes it.
    """
    check_kernel(kernel)
    if not Path(folder).is_dir():
        raise ValueError(f"--dask is for a folder of Parquet files, got {os.fspath(folder)!r}")
    import dask.dataframe as dd  # here, since Dask is an extra

    from nearexact.cluster.local import client_at
    from nearexact.estimators import GPRegressor

    frame = dd.read_parquet(folder)
    recipe = recipe_of(frame, os.fspath(folder), target, ignore, seed)
    model = GPRegressor(
        KERNEL if kernel == AUTO else kernel,
        method="sparse",
        time_limit=time_limit,
        memory_limit=memory_limit,
        random_state=seed,
        progress=progress,
    )
    y: Any = frame[list(recipe.several)] if recipe.several else frame[recipe.target]
    with client_at(dask) as client:
        model.fit(frame[recipe.names], y, client=client, resume=resume)
    model.set_params(progress=False)  # the display is for this fit, not for those who load the model
    model.metadata_ = {RECIPE: recipe.to_json()}
    return model


def recipe_of(frame: Any, name: str, target: str, ignore: Collection[str], seed: int) -> Recipe:
    """Each column as an input; a ValueError that names those that are no numbers."""
    names = [str(column) for column in frame.columns]
    targets = target_names(target, names)
    lacking = [column for column in (*targets, *ignore) if column not in names]
    if lacking:
        raise ValueError(f"{name} has no column {', '.join(map(repr, lacking))}; it has {', '.join(map(repr, names))}")
    used = [column for column in names if column not in ignore]
    kinds = {
        column: str(kind) for column, kind in frame[used].dtypes.items() if getattr(kind, "kind", "O") not in "biuf"
    }
    if kinds:
        found = ", ".join(f"{column!r} is {kind}" for column, kind in kinds.items())
        raise ValueError(f"in a folder all columns must be numbers, but {found}: leave them out with --ignore")
    columns = tuple(Column(column, "number") for column in used if column not in targets)
    if not columns:
        raise ValueError(f"{name} has no column to learn from besides the target {target!r}")
    several = targets if len(targets) > 1 else ()
    left_out = dict.fromkeys(ignore, "ignored")
    return Recipe(", ".join(targets), columns, "error", left_out, Split(0.0, seed), several=several)
