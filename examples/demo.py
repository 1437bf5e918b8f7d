"""The main job on data that need no download: `fit(X, y)`, and learn how near to the exact GP the answer is.

`make demo` runs it. A generated data set with one input, in the manner of Snelson's, and scikit-learn's diabetes data
are fitted by the automatic sparse GP and by the exact one; the first of them is drawn into demo.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

from nearexact import GPRegressor, SGPRegressor

FloatArray = npt.NDArray[np.float64]


def one_input() -> tuple[FloatArray, FloatArray]:
    """200 noisy observations of a smooth function on [0, 6]."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0.0, 6.0, size=200))
    return x[:, None], np.sin(2.5 * x) * np.exp(-0.2 * x) + 0.5 * np.cos(5.0 * x) + 0.25 * rng.normal(size=200)


def fit_both(X: FloatArray, y: FloatArray) -> tuple[SGPRegressor, GPRegressor]:
    """The sparse GP, shown as it grows, and the exact one."""
    sparse = SGPRegressor(random_state=0, progress=True).fit(X, y)
    exact = GPRegressor(random_state=0).fit(X, y)
    print(f"\n{sparse.certificate_}")
    print(f"exact GP with its own hyperparameters: log marginal likelihood {exact.elbo_:.3f}\n")
    return sparse, exact


def draw(X: FloatArray, y: FloatArray, sparse: SGPRegressor, exact: GPRegressor, output: Path) -> None:
    """Mean, 95 % band and inducing points; and the bounds against M."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    grid = np.linspace(-1.0, 7.0, 400)[:, None]
    mean, std = sparse.predict(grid, return_std=True)
    figure, (fit, bounds) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=[3, 2])
    fit.plot(X, y, ".", color="0.6", markersize=4, label="data")
    fit.plot(grid, exact.predict(grid), color="C3", ls="--", label="exact GP")
    fit.plot(grid, mean, color="C0", lw=1, label="sparse GP")
    band = {"color": "C0", "alpha": 0.2, "lw": 0}
    fit.fill_between(grid[:, 0], mean - 1.96 * std, mean + 1.96 * std, **band, label="95 % of observations")
    bottom = fit.get_ylim()[0]
    points = sparse.inducing_points_[:, 0]
    fit.plot(
        points, np.full(len(points), bottom), "^", color="C1", clip_on=False, label=f"{len(points)} inducing points"
    )
    fit.set(xlabel="x", ylabel="y", title=f"Sparse GP: {sparse.certificate_.verdict}", ylim=(bottom, 2.5))
    fit.legend(fontsize=8, ncols=3, loc="upper center")
    m = [stage.m for stage in sparse.history_]
    bounds.plot(m, [stage.upper_bound for stage in sparse.history_], "v-", color="C3", label="upper bound")
    bounds.plot(m, [stage.elbo for stage in sparse.history_], "^-", color="C0", label="ELBO")
    bounds.axhline(exact.elbo_, color="0.3", lw=1, ls="--", label="exact GP")
    bounds.set(xlabel="inducing points M", ylabel="log marginal likelihood", title="Bounds", xscale="log", xticks=m)
    bounds.set_xticks(m, labels=map(str, m))
    bounds.minorticks_off()
    bounds.legend(fontsize=8)
    figure.savefig(output, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="where to draw the picture")
    output = parser.parse_args().output

    print("One input, 200 rows\n")
    X, y = one_input()
    sparse, exact = fit_both(X, y)
    grid = np.linspace(0.0, 6.0, 200)[:, None]
    _, std = exact.predict(grid, return_std=True, noise=False)
    error = np.abs(sparse.predict(grid) - exact.predict(grid)).max()
    print(
        f"largest difference between their means: {error:.2g}, the posterior's own standard deviation: {std.mean():.2g}"
    )
    draw(X, y, sparse, exact, output)
    print(f"picture: {output}")

    print("\n\nDiabetes (scikit-learn), 10 inputs, 332 rows to train and 110 to test\n")
    inputs, targets = load_diabetes(return_X_y=True)
    X, X_test, y, y_test = train_test_split(inputs, targets, test_size=0.25, random_state=0)
    sparse, exact = fit_both(X, y)
    print("                RMSE    negative log predictive density")
    for name, model in (("sparse GP", sparse), ("exact GP", exact)):
        rmse = np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2))
        print(f"{name:12s} {rmse:7.3f} {-model.log_predictive_density(X_test, y_test).mean():10.4f}")
    linear = LinearRegression().fit(X, y).predict(X_test)
    print(f"{'linear':12s} {np.sqrt(np.mean((linear - y_test) ** 2)):7.3f}")


if __name__ == "__main__":
    main()
