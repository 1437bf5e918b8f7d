"""GPBoost and LightGBM as practice.py runs them, in an environment of their own: `make bench-practice`."""

from __future__ import annotations

import gpboost
import lightgbm
import numpy as np
from practice_child import FloatArray, Problem, main

FIRST_ROWS = 500
# Quantiles at these levels; the outermost two are the 95 % interval.
LEVELS = np.array([0.025, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.975])
HELD_BACK = 0.15  # of the rows, to end boosting early
PATIENCE = 50  # rounds without a gain
BOOSTING = {"learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 20, "num_threads": 1, "verbosity": -1}
MOST_ROUNDS = 5000


def vecchia(problem: Problem) -> None:
    """Vecchia's approximation, Matérn 3/2 with one lengthscale per input, GPBoost's own settings for all else.

    A fit cannot be stopped from Python. So there are several, to twice as many rows each, from where the last one has
    ended; what is predicted with are all rows.
    """
    X, y = problem.X, problem.y
    rows, values = min(FIRST_ROWS, len(y)), None
    while True:
        problem.die_at_limit()
        model = _vecchia_model(X[:rows])
        model.fit(y=y[:rows], params=None if values is None else {"init_cov_pars": values})
        values = np.asarray(model.get_cov_pars(format_pandas=False)).ravel()
        problem.write(lambda values=values: _predictions(problem, values), f"parameters from {rows} rows")  # type: ignore[misc]
        if rows == len(y):
            return
        rows = min(2 * rows, len(y))


def _vecchia_model(X: FloatArray) -> gpboost.GPModel:
    return gpboost.GPModel(gp_coords=X, cov_function="matern_ard", cov_fct_shape=1.5, gp_approx="vecchia", seed=0)


def _predictions(problem: Problem, values: FloatArray) -> dict[str, FloatArray]:
    model = _vecchia_model(problem.X)
    predicted = model.predict(
        y=problem.y, cov_pars=values, gp_coords_pred=problem.X_test, predict_var=True, predict_response=True
    )
    return {"mean": predicted["mu"], "variance": predicted["var"]}


def quantiles(problem: Problem) -> None:
    """Boosted trees: one model of the mean and one of each quantile, each ended early by rows that are held back."""
    order = np.random.default_rng(0).permutation(len(problem.y))
    train, held_back = np.split(order, [len(order) - int(HELD_BACK * len(order))])
    objectives = [{"objective": "regression"}, *({"objective": "quantile", "alpha": level} for level in LEVELS)]
    models = []
    for number, objective in enumerate(objectives):
        data = lightgbm.Dataset(problem.X[train], problem.y[train])
        models.append(
            lightgbm.train(
                {**BOOSTING, **objective, "seed": 0},
                data,
                MOST_ROUNDS,
                valid_sets=[lightgbm.Dataset(problem.X[held_back], problem.y[held_back], reference=data)],
                callbacks=[
                    lightgbm.early_stopping(PATIENCE, verbose=False),
                    _stop_after(problem, problem.left() / (len(objectives) - number)),
                ],
            )
        )

    def predict() -> dict[str, FloatArray]:
        mean, *at_levels = (np.asarray(model.predict(problem.X_test)) for model in models)
        return {"mean": mean, "quantiles": np.sort(np.column_stack(at_levels), axis=1), "levels": LEVELS}

    problem.write(predict, f"{models[0].best_iteration} trees for the mean")


def _stop_after(problem: Problem, seconds: float) -> object:
    end = problem.left() - seconds

    def callback(environment: lightgbm.callback.CallbackEnv) -> None:
        if problem.left() < end:
            raise lightgbm.callback.EarlyStopException(environment.iteration, environment.evaluation_result_list or [])

    return callback


if __name__ == "__main__":
    main({"gpboost-vecchia": vecchia, "lightgbm-quantiles": quantiles})
