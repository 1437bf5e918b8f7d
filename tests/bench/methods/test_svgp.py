"""SVGP's bound next to SGPR's, which is the best that it can reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nearexact.bench import methods
from nearexact.bench.datasets import Split, load_split, split
from nearexact.bench.methods.svgp import MOST_RETURNS, VariationalGP, WayBack
from nearexact.gp import NumericalError, sgpr_objective
from nearexact.kernels import SquaredExponential
from tests.bench.helpers import Notes, task


def smooth_split(seed: int = 0) -> Split:
    """A smooth function of one input, 170 rows to train: easy for a GP with a dozen inducing points."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 6.0, size=200)
    return split(x[:, None], np.sin(2.0 * x) + 0.3 * x + 0.3 * rng.normal(size=200), seed)


def one_input(name: str) -> Split:
    return smooth_split() if name == "smooth" else load_split(name, 0)


both = pytest.mark.parametrize("name", ["smooth", pytest.param("snelson", marks=pytest.mark.data("snelson"))])


def sgpr_bound(model: VariationalGP, data: Split) -> float:
    """The optimal bound at SVGP's hyperparameters and points."""
    kernel = SquaredExponential(
        model.covar_module.base_kernel.lengthscale[0].detach().numpy(), model.covar_module.outputscale.item()
    )
    Z = model.variational_strategy.inducing_points.detach()
    objective = sgpr_objective(kernel, model.noise_variance, data.X_train, data.y_train, Z)
    return -objective(objective.theta0)[0]


@both
def test_its_bound_stays_below_sgprs_and_comes_close(name: str) -> None:
    data, notes = one_input(name), Notes()
    problem = task("step", X_train=data.X_train, y_train=data.y_train, n_test=len(data.y_test))
    methods.create("svgp", {"num_inducing": 15, "learning_rate": 0.1, "max_steps": 800}).run(problem, notes)
    model: VariationalGP = notes.calls[-1]["predict"].__self__
    elbo = notes.calls[-1]["elbo"]()
    optimum = sgpr_bound(model, data)
    assert elbo <= optimum + 1e-6 * abs(optimum)
    assert optimum - elbo < 0.01 * abs(optimum)


@both
def test_no_variational_distribution_beats_the_optimal_one(name: str) -> None:
    data = one_input(name)
    X, y = torch.tensor(data.X_train), torch.tensor(data.y_train)
    generator = torch.Generator().manual_seed(0)
    model = VariationalGP(X[:12])
    model.elbo(X, y)  # GPyTorch sets m and S when they are first used
    for scale in (0.0, 0.1, 1.0):
        for parameter in model.variational_strategy._variational_distribution.parameters():
            parameter.data += scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        assert model.elbo(X, y) < sgpr_bound(model, data)


def test_the_whole_bound_is_the_mean_of_the_minibatches() -> None:
    data = smooth_split()
    X, y = torch.tensor(data.X_train), torch.tensor(data.y_train)
    model = VariationalGP(X[:10])
    whole, n = model.elbo(X, y), len(y)
    parts = [model.elbo_per_point(X[rows], y[rows], n).item() * n for rows in (range(0, n, 2), range(1, n, 2))]
    weights = [len(range(0, n, 2)) / n, len(range(1, n, 2)) / n]
    assert whole == pytest.approx(np.average(parts, weights=weights), rel=1e-6)


def test_it_starts_as_the_paper_says() -> None:
    model = VariationalGP(torch.zeros(3, 2, dtype=torch.float64) + torch.arange(3.0)[:, None])
    assert model.noise_variance == pytest.approx(0.1)
    model(torch.zeros(1, 2, dtype=torch.float64))
    q = model.variational_strategy._variational_distribution
    np.testing.assert_allclose(q.variational_mean.detach(), 0.0)
    np.testing.assert_allclose(q.chol_variational_covar.detach(), np.eye(3))


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number"):
        methods.create("svgp", {"batch_size": 0})


def test_steps_that_lead_nowhere_are_undone_with_a_smaller_learning_rate() -> None:
    """A learning rate so large that the squares of the first parameters overflow, until it has been halved enough."""

    class Evaluated(Notes):
        def __call__(self, predict: Any, **given: Any) -> None:
            super().__call__(predict, **{**given, "elbo": given["elbo"]()})

    data, notes = smooth_split(), Evaluated()
    problem = task("step", X_train=data.X_train, y_train=data.y_train, n_test=len(data.y_test))
    options = {"num_inducing": 10, "learning_rate": 1e155, "max_steps": 8, "scheduler": False}
    methods.create("svgp", options).run(problem, notes)
    last = notes.calls[-1]
    assert last["returns"] == last["step"] - 1 > 0  # one step after all that were undone
    assert last["learning_rate"] == 1e155 * 0.5 ** last["returns"]
    assert np.isfinite(last["elbo"])


def test_going_back_restores_parameters_and_moments_and_has_an_end() -> None:
    model = VariationalGP(torch.arange(4.0, dtype=torch.float64)[:, None])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    X = torch.linspace(0.0, 3.0, 20, dtype=torch.float64)[:, None]

    def step() -> None:
        optimiser.zero_grad()
        model.loss(X, X[:, 0].sin(), 20).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    step()
    way_back = WayBack(model, optimiser)
    error = NumericalError("nothing finite here")
    with pytest.raises(NumericalError, match="nothing finite"):
        way_back.take(error)  # nothing is kept yet
    way_back.keep()
    before = [p.detach().clone() for p in model.parameters()]
    step()
    after = [p.detach().clone() for p in model.parameters()]
    way_back.take(error)
    assert all(torch.equal(p, value) for p, value in zip(model.parameters(), before, strict=True))
    optimiser.param_groups[0]["lr"] = 0.1
    step()  # as if nothing had happened
    assert all(torch.allclose(p, value) for p, value in zip(model.parameters(), after, strict=True))
    for _ in range(MOST_RETURNS - 1):  # one was taken above
        way_back.take(error)
    with pytest.raises(NumericalError, match="nothing finite"):
        way_back.take(error)


def test_the_first_jitter_is_on_the_diagonal_and_the_ladder_goes_on_from_there() -> None:
    """Two inducing points that are the same: K_ZZ is singular, and the jitter decides what is computed."""
    Z = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    model = VariationalGP(Z)
    X = torch.linspace(-1.0, 2.0, 30, dtype=torch.float64)[:, None]
    y = X[:, 0].sin()
    assert model.variational_strategy.jitter_val == 1e-10
    twice, once = model.elbo(X, y), VariationalGP(Z[1:]).elbo(X, y)
    assert twice == pytest.approx(once, rel=1e-4)
