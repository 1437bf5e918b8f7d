"""A sparse GP on 200 generated points: select inducing points, optimise once, and see how near to the exact GP it is.

`make demo` runs it; it prints the bounds for growing M and draws them, with the fit, into demo.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

from nearexact.gp import gpr_objective, greedy_variance, minimise, sgpr_objective
from nearexact.kernels import SquaredExponential

M = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="where to draw the picture")
    output = parser.parse_args().output

    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0.0, 6.0, size=200))[:, None]
    y = np.sin(2.5 * X[:, 0]) * np.exp(-0.2 * X[:, 0]) + 0.5 * np.cos(5.0 * X[:, 0]) + 0.25 * rng.normal(size=200)

    start = SquaredExponential(lengthscales=1.0, variance=1.0)
    chosen = greedy_variance(start, X, M, seed=0)
    objective = sgpr_objective(start, 0.01, X, y, X[chosen])
    optimum = minimise(objective, objective.theta0)
    kernel, noise_variance = objective.layout.unpack(optimum.theta)
    print(f"{optimum.evaluations} evaluations in {optimum.seconds:.2f} s, {optimum.reason}")
    print(f"{kernel!r}, noise variance {noise_variance:.4g}")

    # The same hyperparameters with more and more points: the bounds close in on the exact log marginal likelihood.
    exact = gpr_objective(kernel, noise_variance, X, y).factorise(kernel, noise_variance).lml
    order = greedy_variance(kernel, X, 30, seed=0)
    sizes = [m for m in (2, 4, 6, 8, 10, 12, 15, 20, 30) if m <= len(order)]
    bounds = []
    print(f"\n  M        ELBO  upper bound   (exact log marginal likelihood {exact:.3f})")
    for m in sizes:
        model = sgpr_objective(kernel, noise_variance, X, y, X[order[:m]]).factorise(kernel, noise_variance)
        bounds.append((model.elbo, model.upper_bound))
        print(f"{m:3d} {model.elbo:11.3f} {model.upper_bound:12.3f}")

    grid = np.linspace(-1.0, 7.0, 400)[:, None]
    mean, variance = (v.numpy() for v in objective.factorise(kernel, noise_variance).posterior().predict(grid))
    band = 1.96 * np.sqrt(variance + noise_variance)

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (fit, gap) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=[3, 2])
    fit.plot(X, y, ".", color="0.6", markersize=4, label="data")
    fit.plot(grid, mean, color="C0", label="mean")
    fit.fill_between(grid[:, 0], mean - band, mean + band, color="C0", alpha=0.2, lw=0, label="95 % of observations")
    fit.plot(X[chosen], np.full(M, fit.get_ylim()[0]), "^", color="C1", clip_on=False, label=f"{M} inducing points")
    fit.set(xlabel="x", ylabel="y", title="Sparse GP", ylim=(fit.get_ylim()[0], 2.3))
    fit.legend(fontsize=8, ncols=4, loc="upper center")
    lower, upper = np.transpose(bounds)
    gap.plot(sizes, upper, "v-", color="C3", label="upper bound")
    gap.plot(sizes, lower, "^-", color="C0", label="ELBO")
    gap.axhline(exact, color="0.3", lw=1, ls="--", label="exact")
    gap.set(xlabel="M", ylabel="log marginal likelihood", title="Bounds")
    gap.set_ylim(exact - 150, exact + 150)
    gap.legend(fontsize=8)
    figure.savefig(output, dpi=150)
    print(f"\npicture: {output}")


if __name__ == "__main__":
    main()
