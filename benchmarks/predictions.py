"""How tight bounds on single predictions are after some time: prints a table, and writes results/predictions.json.

    NEAREXACT_DATA=<folder> python benchmarks/predictions.py

A sparse GP is fitted to each data set; the exact GP at the same hyperparameters, by Cholesky, tells how far its
predictions really are from the exact ones, and that the bounds hold. `--rows` takes only the first rows of the
training data, for a quick look.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import result_files
import torch

from nearexact import SGPRegressor
from nearexact.bench.datasets import load_split
from nearexact.gp import gpr_objective
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

RESULTS = "predictions.json"
Row = dict[str, object]


def exact_predictions(model: SGPRegressor, X: FloatArray, y: FloatArray, X_new: FloatArray) -> tuple[FloatArray, ...]:
    """Mean and latent std of the exact GP at the model's hyperparameters, in the user's units."""
    scaling_X, scaling_y = Scaling.of(X), Scaling.of(y)
    objective = gpr_objective(model.kernel_, model.noise_variance_, scaling_X.apply(X), scaling_y.apply(y))
    parts = objective.factorise(model.kernel_, model.noise_variance_).predict(scaling_X.apply(X_new))
    mean, variance = (part.numpy() for part in parts)
    return scaling_y.undo(mean), np.sqrt(variance) * scaling_y.scale


def measure(name: str, rows: int | None, new_rows: int, fit_limit: float, limits: list[float]) -> list[Row]:
    data = load_split(name, seed=0)
    X, y, X_new = data.X_train[:rows], data.y_train[:rows], data.X_test[:new_rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SGPRegressor(random_state=0, time_limit=fit_limit).fit(X, y)
    exact_mean, exact_std = exact_predictions(model, X, y, X_new)
    noisy = np.sqrt(exact_std**2 + model.noise_variance_ * y.var())
    table: list[Row] = []
    for limit in [*limits, None]:
        started = time.perf_counter()
        mean, mean_error, std, lower, upper = model.certify_predictions(X_new, time_limit=limit)
        seconds = time.perf_counter() - started
        errors, true_errors, widths = mean_error / noisy, np.abs(mean - exact_mean) / noisy, (upper - lower) / upper
        holds = (np.abs(mean - exact_mean) <= mean_error) & (lower <= exact_std) & (exact_std <= upper)
        table.append(
            {
                "dataset": name,
                "n": len(y),
                "m": len(model.inducing_points_),
                "fit ended": model.history_[-1].ended,
                "fit limit": fit_limit,
                "noise variance": model.noise_variance_,
                "new rows": len(X_new),
                "time limit": limit,
                "seconds": seconds,
                "mean error / std of an observation, median": float(np.median(errors)),
                "mean error / std of an observation, largest": float(errors.max()),
                "true distance / std of an observation, median": float(np.median(true_errors)),
                "true distance / std of an observation, largest": float(true_errors.max()),
                "width of the std bounds, median": float(np.median(widths)),
                "width of the std bounds, largest": float(widths.max()),
                "true std difference, median": float(np.median(np.abs(std - exact_std) / exact_std)),
                "true std difference, largest": float((np.abs(std - exact_std) / exact_std).max()),
                "all bounds hold": bool(holds.all()),
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["kin8nm"])
    parser.add_argument("--rows", type=int, help="of the training data, all by default")
    parser.add_argument("--new-rows", type=int, default=1000, help="to predict")
    parser.add_argument("--fit-limit", type=float, default=60.0, help="seconds of each fit")
    parser.add_argument("--limits", nargs="+", type=float, default=[10.0, 60.0], help="seconds for the bounds")
    arguments = parser.parse_args()
    table: list[Row] = []
    for name in arguments.datasets:
        for row in measure(name, arguments.rows, arguments.new_rows, arguments.fit_limit, arguments.limits):
            print("\n".join(f"{key:50} {value:.4g}" if isinstance(value, float) else f"{key:50} {value}"
                            for key, value in row.items()), end="\n\n", flush=True)  # fmt: skip
            table.append(row)
    if arguments.rows is None:  # a quick look is no result
        result_files.write(RESULTS, {"threads": torch.get_num_threads(), "rows": table})


if __name__ == "__main__":
    main()
