"""Time to a model: `fit(X, y)` next to what one would otherwise pick, all in one run: `make bench-models`.

scikit-learn's exact GP gets the first 4000 rows of kin8nm, since more take it too long; GPyTorch's sparse GP gets all
rows of elevators, 500 inducing points and 300 steps of Adam. Ours gets all rows, a time limit, and nothing else.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import gpytorch
import numpy as np
import result_files
import torch
from peers import gpytorch_sgpr
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from nearexact import SGPRegressor
from nearexact.bench.datasets import Split, load_split
from nearexact.typing import FloatArray

RESULTS = "time_to_model.json"
Predictions = tuple[FloatArray, FloatArray]  # mean and standard deviation of new observations


def nearexact(data: Split, time_limit: str) -> tuple[Predictions, str]:
    model = SGPRegressor(time_limit=time_limit, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X_train, data.y_train)
    mean, std = model.predict(data.X_test, return_std=True)
    return (mean, std), f"M={len(model.inducing_points_)}, {model.certificate_.verdict}"


def scikit_learn(data: Split, rows: int) -> tuple[Predictions, str]:
    kernel = ConstantKernel() * RBF(np.ones(data.X_train.shape[1])) + WhiteKernel(0.01)
    model = GaussianProcessRegressor(kernel).fit(data.X_train[:rows], data.y_train[:rows])
    mean, std = model.predict(data.X_test, return_std=True)
    return (mean, std), "exact"


def gpytorch_adam(data: Split, m: int, steps: int) -> tuple[Predictions, str]:
    torch.manual_seed(0)
    X, y = torch.tensor(data.X_train), torch.tensor(data.y_train)
    model = gpytorch_sgpr(X, y, X[torch.randperm(len(X))[:m]])
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = -objective(model(X), y)
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        predictive = model.likelihood(model(torch.tensor(data.X_test)))
    return (predictive.mean.numpy(), predictive.stddev.numpy()), f"M={m}"


def measure(fit: Callable[[], tuple[Predictions, str]], data: Split) -> dict[str, float | str]:
    """Seconds to fit and predict, and how good the predictions are, on standardised targets."""
    start = time.perf_counter()
    (mean, std), what = fit()
    seconds = time.perf_counter() - start
    error = data.y_test - mean
    nlpd = np.mean(0.5 * math.log(2.0 * math.pi) + np.log(std) + 0.5 * (error / std) ** 2)
    return {"model": what, "seconds": seconds, "nlpd": float(nlpd), "rmse": float(np.sqrt(np.mean(error**2)))}


def main() -> None:
    kin8nm, elevators = load_split("kin8nm", 0), load_split("elevators", 0)
    contests: dict[str, tuple[Split, dict[str, Callable[[], tuple[Predictions, str]]]]] = {
        f"kin8nm ({len(kin8nm.y_train)} rows)": (
            kin8nm,
            {
                'nearexact, time_limit="1m"': lambda: nearexact(kin8nm, "1m"),
                "scikit-learn, first 4000 rows": lambda: scikit_learn(kin8nm, 4000),
            },
        ),
        f"elevators ({len(elevators.y_train)} rows)": (
            elevators,
            {
                'nearexact, time_limit="2m"': lambda: nearexact(elevators, "2m"),
                "GPyTorch SGPR, Adam, 300 steps": lambda: gpytorch_adam(elevators, 500, 300),
            },
        ),
    }
    table, reached = [], True
    print("| data | fit | model | seconds | test NLPD | test RMSE |\n| --- | --- | --- | --- | --- | --- |")
    for name, (data, fits) in contests.items():
        results = {fit: measure(run, data) for fit, run in fits.items()}
        for fit, r in results.items():
            print(
                f"| {name} | {fit} | {r['model']} | {r['seconds']:.0f} | {r['nlpd']:.3f} | {r['rmse']:.3f} |",
                flush=True,
            )
            table.append({"data": name, "fit": fit, **r})
        ours, theirs = results.values()
        reached &= ours["nlpd"] < theirs["nlpd"] and ours["seconds"] < theirs["seconds"]  # type: ignore[operator]
    result_files.write(RESULTS, table)
    if not reached:
        raise SystemExit("a peer was faster or better")


if __name__ == "__main__":
    main()
