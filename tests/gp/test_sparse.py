"""SGPR against the dense formulas, against GPyTorch, against finite differences, and within its memory."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from nearexact.gp import Numerics, SparseObjective, linalg, memory, sgpr_objective, sweeps
from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, SquaredExponential
from tests.gp import dense
from tests.gp.helpers import GPyTorchSGPR
from tests.problems import KERNELS, regression
from tests.tensors import Allocations

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
WAYS = {
    "solves": Numerics(direct_condition=0.0, merge_condition=0.0),
    "merged": Numerics(direct_condition=0.0, merge_condition=np.inf),
    "direct": Numerics(direct_condition=np.inf, merge_condition=np.inf),
}
every_way = pytest.mark.parametrize("numerics", WAYS.values(), ids=WAYS.keys())
every_bound = pytest.mark.parametrize("bound", ["elbo", "tight"])
NOISE = 0.05


@every_kernel
def test_bounds_equal_the_dense_formulas(kernel: Kernel) -> None:
    X, y = regression(60)
    Z = X[:11]
    model = sgpr_objective(kernel, NOISE, X, y, Z).factorise(kernel, NOISE)
    assert model.elbo == pytest.approx(dense.elbo(kernel, NOISE, X, y, Z, model.jitter), rel=1e-8)
    assert model.upper_bound == pytest.approx(dense.upper_bound(kernel, NOISE, X, y, Z, model.jitter), rel=1e-8)


@every_kernel
@every_way
def test_the_tight_bound_equals_the_dense_formula_however_it_is_asked_for(kernel: Kernel, numerics: Numerics) -> None:
    X, y = regression(60)
    Z = X[:4]
    plain = SparseObjective(kernel, NOISE, X, y, Z, numerics=numerics)
    model = plain.factorise(kernel, NOISE, residuals=True)
    expected = dense.tight_bound(kernel, NOISE, X, y, Z, model.jitter)
    assert model.elbo == plain.factorise(kernel, NOISE).elbo  # to the bit: training compares the two
    assert model.tight_bound == pytest.approx(expected, rel=1e-8)
    assert model.tight_bound >= model.elbo - 1e-9 * abs(model.elbo)
    tight = SparseObjective(kernel, NOISE, X, y, Z, bound="tight", numerics=numerics)
    assert -tight(tight.theta0)[0] == pytest.approx(expected, rel=1e-8)
    assert tight.factorise(kernel, NOISE).elbo == pytest.approx(model.elbo, rel=1e-8)
    bounds = model.bounds
    assert bounds.lower == pytest.approx(model.tight_bound, rel=1e-12)
    assert bounds.upper == pytest.approx(model.upper_bound, rel=1e-12)
    assert bounds.trace_gap + bounds.residual_gap == pytest.approx(bounds.upper - bounds.lower, abs=1e-9)


def test_predictions_do_not_depend_on_the_bound() -> None:
    X, y = regression(60)
    kernel = SquaredExponential([0.6, 1.1, 2.0])
    one, other = (
        sgpr_objective(kernel, NOISE, X, y, X[:9], bound=bound).factorise(kernel, NOISE).posterior()
        for bound in ("elbo", "tight")
    )
    for ours, theirs in zip(one.predict(X), other.predict(X), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@every_kernel
def test_predictions_equal_the_dense_formulas(kernel: Kernel) -> None:
    X, y = regression(60)
    Z, X_new = X[:9], regression(15, seed=5)[0]
    model = sgpr_objective(kernel, NOISE, X, y, Z).factorise(kernel, NOISE)
    mean, covariance = dense.predict(kernel, NOISE, X, y, Z, X_new, model.jitter)
    scale = np.abs(covariance).max()
    posterior = model.posterior()
    got_mean, got_variance = posterior.predict(X_new)
    assert np.allclose(got_mean, mean, rtol=1e-7, atol=1e-7)
    assert np.allclose(got_variance, np.diag(covariance), rtol=1e-7, atol=1e-8 * scale)
    joint_mean, joint = posterior.joint(X_new)
    assert np.allclose(joint_mean, got_mean, rtol=1e-10)
    assert np.allclose(joint, covariance, rtol=1e-7, atol=1e-8 * scale)


@every_kernel
@every_way
@every_bound
def test_gradient_agrees_with_finite_differences(kernel: Kernel, numerics: Numerics, bound: str) -> None:
    X, y = regression(50)
    objective = SparseObjective(kernel, NOISE, X, y, X[:4], bound=bound, numerics=numerics)
    theta = objective.theta0
    value, gradient = objective(theta)
    assert gradient.shape == theta.shape == (len(objective.layout.names),)
    step = 1e-5
    for i, name in enumerate(objective.layout.names):
        change = np.zeros_like(theta)
        change[i] = step
        expected = (objective(theta + change)[0] - objective(theta - change)[0]) / (2 * step)
        assert gradient[i] == pytest.approx(expected, rel=1e-5, abs=1e-6 * abs(value)), name


def test_theta_is_the_point_at_which_it_was_made() -> None:
    X, y = regression(40)
    kernel = Matern12([0.5, 2.0, 7.0], 3.0)
    objective = sgpr_objective(kernel, 0.2, X, y, X[:5])
    assert objective(objective.theta0)[0] == pytest.approx(-dense.elbo(kernel, 0.2, X, y, X[:5]), rel=1e-9)
    assert objective.layout.names == [
        "lengthscales[0]",
        "lengthscales[1]",
        "lengthscales[2]",
        "variance",
        "noise_variance",
    ]


@every_way
def test_value_and_gradient_equal_gpytorchs(numerics: Numerics) -> None:
    X, y = regression(400)
    kernel = SquaredExponential([0.6, 1.1, 2.0], 1.7)
    tensors = torch.tensor(X), torch.tensor(y)
    expected, gradients = GPyTorchSGPR(*tensors, tensors[0][:20], kernel, NOISE).elbo_and_gradient()
    # GPyTorch adds jitter only where the factorisation fails, and here it does not.
    numerics = replace(numerics, first_jitter=0.0)
    objective = SparseObjective(kernel, NOISE, X, y, X[:20], numerics=numerics)
    value, by_parameter, by_noise = objective.value_and_gradient(kernel, NOISE)
    assert value == pytest.approx(expected, rel=1e-6)
    assert by_parameter["lengthscales"].numpy() == pytest.approx(gradients["lengthscales"], rel=1e-6)
    assert float(by_parameter["variance"]) == pytest.approx(gradients["variance"][0], rel=1e-6)
    assert by_noise == pytest.approx(gradients["noise"][0], rel=1e-6)


def test_samples_have_the_posterior_mean_and_covariance() -> None:
    X, y = regression(60)
    kernel = SquaredExponential([0.6, 1.1, 2.0])
    posterior = sgpr_objective(kernel, NOISE, X, y, X[:9]).factorise(kernel, NOISE).posterior()
    X_new = regression(4, seed=5)[0]
    mean, covariance = posterior.joint(X_new)
    samples = posterior.sample(X_new, 200_000, seed=1)
    error = 5.0 / np.sqrt(200_000)  # five standard errors of unit variance
    assert torch.allclose(samples.mean(0), mean, atol=error)
    assert torch.allclose(torch.cov(samples.T), covariance, atol=2 * error)
    assert torch.equal(samples, posterior.sample(X_new, 200_000, seed=1))
    assert not torch.equal(samples, posterior.sample(X_new, 200_000, seed=2))


@pytest.mark.parametrize(
    "kernel",
    [SquaredExponential(0.3), SquaredExponential(1.0), SquaredExponential(1.5), Matern12(1.5), ArcCosine(1) + Linear()],
    ids=["direct", "merged", "solves", "matern12", "composite"],
)
@every_bound
def test_memory_limit_changes_nothing_but_memory(kernel: Kernel, bound: str) -> None:
    n, m = 30_000, 40
    X, y = regression(n)
    plenty = sgpr_objective(kernel, NOISE, X, y, X[:m], bound=bound, memory_limit="1GB")
    scarce = sgpr_objective(kernel, NOISE, X, y, X[:m], bound=bound, memory_limit="4MB")
    assert plenty.plan.keeps_v
    assert not scarce.plan.keeps_v
    assert scarce.plan.rows < plenty.plan.rows
    value, gradient = plenty(plenty.theta0)
    with Allocations() as allocations:
        limited_value, limited_gradient = scarce(scarce.theta0)
    assert limited_value == pytest.approx(value, rel=1e-10)
    assert np.allclose(limited_gradient, gradient, rtol=1e-8, atol=1e-10 * np.abs(gradient).max())
    assert allocations.largest_elements * 8 < 4e6 < n * m * 8  # no array of size [N, M], nor anything near it
    assert scarce.value(scarce.factorise(*scarce.layout.unpack(scarce.theta0))) == pytest.approx(-value, rel=1e-10)


@every_way
@every_bound
def test_no_array_is_larger_than_n_by_m(numerics: Numerics, bound: str) -> None:
    n, m = 3000, 50
    X, y = regression(n)
    objective = SparseObjective(SquaredExponential(), NOISE, X, y, X[:m], bound=bound, numerics=numerics)
    with Allocations() as allocations:
        objective(objective.theta0)
    assert allocations.largest_elements <= n * m


@every_kernel
@pytest.mark.parametrize(
    ("numerics", "bound"),
    [(WAYS["solves"], "elbo"), (Numerics(), "elbo"), (Numerics(), "tight")],
    ids=["solves", "default", "tight"],
)
@pytest.mark.parametrize(("n", "m", "limit"), [(4000, 30, 3e6), (4000, 30, 16e6), (1500, 300, 31e6)])
def test_what_is_alive_at_once_stays_within_the_limit(
    n: int, m: int, limit: float, kernel: Kernel, numerics: Numerics, bound: str
) -> None:
    X, y = regression(n)
    X, y = torch.tensor(X), torch.tensor(y)  # the data themselves do not count
    with Allocations() as allocations:
        objective = SparseObjective(kernel, NOISE, X, y, X[:m], bound=bound, memory_limit=limit, numerics=numerics)
        objective(objective.theta0)
        objective.factorise(*objective.layout.unpack(objective.theta0), residuals=True)
    assert allocations.peak_bytes - 8 * (X.numel() + len(y)) <= limit


def test_a_memory_limit_too_small_for_the_points_is_refused() -> None:
    X, y = regression(2000)
    with pytest.raises(ValueError, match=r"1000 inducing points need at least 88.6 MB, but the memory limit is 50 MB"):
        sgpr_objective(SquaredExponential(), NOISE, X, y, X[:1000], memory_limit="50MB")


@every_way
@every_bound
def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch, numerics: Numerics, bound: str) -> None:
    """One chunk, many chunks with a short last one, and blocks of G: the same numbers."""
    X, y = regression(1000)
    kernel = SquaredExponential(0.3)
    one = SparseObjective(kernel, NOISE, X, y, X[:150], bound=bound, numerics=numerics)
    value, gradient = one(one.theta0)
    monkeypatch.setattr(memory, "MOST_ELEMENTS", 300 * 150)
    monkeypatch.setattr(linalg, "GRAM_BLOCK", 37)
    monkeypatch.setattr(sweeps, "KEPT_ELEMENTS", 0)
    many = SparseObjective(kernel, NOISE, X, y, X[:150], bound=bound, numerics=numerics)
    assert (one.plan.rows, many.plan.rows) == (1000, 300)
    assert many(many.theta0)[0] == pytest.approx(value, rel=1e-12)
    assert many(many.theta0)[1] == pytest.approx(gradient, rel=1e-9)
    posterior = many.factorise(*many.layout.unpack(many.theta0)).posterior()
    mean, variance = posterior.predict(X)
    joint_mean, covariance = posterior.joint(X)
    assert torch.allclose(mean, joint_mean, rtol=1e-10)
    assert torch.allclose(variance, covariance.diagonal(), rtol=1e-8, atol=1e-12)


def test_the_shortcut_is_taken_only_where_it_costs_no_digits() -> None:
    """Over four orders of magnitude of lengthscales, against the way that always solves."""
    X, y = regression(500)
    taken = set()
    for lengthscale in np.geomspace(0.03, 300.0, 25):
        kernel = SquaredExponential([lengthscale] * 3)
        objective = sgpr_objective(kernel, 1e-3, X, y, X[:60])
        careful = SparseObjective(kernel, 1e-3, X, y, X[:60], numerics=WAYS["solves"])
        model = objective.factorise(kernel, 1e-3)
        taken.add((model.direct, model.merges))
        assert objective(objective.theta0)[0] == pytest.approx(careful(careful.theta0)[0], rel=1e-8)
        gradient, expected = objective(objective.theta0)[1], careful(careful.theta0)[1]
        assert np.allclose(gradient, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())
    assert taken == {(True, True), (False, True), (False, False)}


def test_evaluations_do_not_disturb_each_other() -> None:
    X, y = regression(300)
    objective = sgpr_objective(SquaredExponential(), NOISE, X, y, X[:20])
    first = objective(objective.theta0)
    objective(objective.theta0 + 0.5)
    objective.factorise(*objective.layout.unpack(objective.theta0 - 0.5))
    again = objective(objective.theta0)
    assert first[0] == again[0]
    assert np.array_equal(first[1], again[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones(5)}, "X must be a matrix"),
        ({"y": np.ones(4)}, "X and y must have equally many rows, at least one, got 5 and 4"),
        ({"y": np.ones((5, 1, 1))}, "y must be a vector, or a matrix with a column for each target, got shape"),
        ({"y": ["a"] * 5}, "y must be a numeric vector"),
        ({"y": [1.0, 2.0, np.nan, np.inf, 1.0]}, "y must be finite, got 2 NaN or infinite values"),
        ({"X": np.full((5, 2), np.nan)}, "X must be finite, got 10"),
        ({"X": np.ones((0, 2)), "y": []}, "got 0 and 0"),
        ({"Z": np.ones((2, 3))}, "Z must have 2 columns, got 3"),
        ({"Z": np.ones((0, 2))}, "at least one row"),
        ({"Z": np.full((1, 2), np.inf)}, "Z must be finite"),
        ({"X": np.ones((5, 2), dtype=complex)}, "X must be a numeric matrix"),
        ({"noise_variance": None}, "noise_variance must be a number, got None"),
        ({"kernel": None}, r"kernel must be a kernel such as SquaredExponential\(\), got None"),
        ({"kernel": SquaredExponential}, "kernel must be a kernel"),
        ({"noise_variance": 1e-9}, "noise_variance must be finite and at least 1e-05, got 1e-09"),
        (
            {"kernel": SquaredExponential([1.0, 1e-9])},
            r"lengthscales\[1\] must be finite and at least 1e-05, got 1e-09",
        ),
        ({"kernel": SquaredExponential([1.0] * 3)}, "lengthscales has 3 values"),
        ({"bound": "loose"}, 'bound must be "elbo" or "tight", got \'loose\''),
        ({"memory_limit": "lots"}, "text such as \"2GB\", got 'lots'"),
        ({"memory_limit": -1}, "got -1"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "kernel": SquaredExponential(),
        "noise_variance": 0.1,
        "X": np.random.default_rng(0).normal(size=(5, 2)),
        "y": np.arange(5.0),
        "Z": np.zeros((2, 2)),
    }
    with pytest.raises(ValueError, match=message):
        sgpr_objective(**(arguments | change))  # type: ignore[arg-type]


def test_arrays_of_every_kind_are_accepted() -> None:
    X, y = regression(30)
    expected = sgpr_objective(SquaredExponential(), NOISE, X, y, X[:4])(np.zeros(5))[0]
    read_only = X.copy()
    read_only.flags.writeable = False
    for inputs, targets in (
        (X[::-1][::-1], y[::-1][::-1]),
        (read_only, y.tolist()),
        (X.astype(">f8"), y.astype(">f8")),
        (np.asfortranarray(X), torch.tensor(y, requires_grad=True)),
        (torch.tensor(X), torch.tensor(y)),
        (X.tolist(), y),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            objective = sgpr_objective(SquaredExponential(), NOISE, inputs, targets, X[:4])
        assert objective(np.zeros(5))[0] == expected


def test_targets_and_points_are_copied() -> None:
    X, y = regression(30)
    Z = X[:4].copy()
    objective = sgpr_objective(SquaredExponential(), NOISE, X, y, Z)
    value, _ = objective(objective.theta0)
    y *= 2.0
    Z += 1.0
    assert objective(objective.theta0)[0] == value


def test_other_kernels_and_shapes_are_refused_later_too() -> None:
    X, y = regression(30)
    objective = sgpr_objective(SquaredExponential(), NOISE, X, y, X[:4])
    assert objective.factorise(SquaredExponential(2.0), NOISE).elbo < 0.0  # a scalar is broadcast here too
    with pytest.raises(ValueError, match=r"must differ from SquaredExponential.* in its parameters only, got Linear"):
        objective.factorise(Linear(), NOISE)
    with pytest.raises(ValueError, match="in its parameters only, got Matern12"):
        objective.factorise(Matern12(), NOISE)
    with pytest.raises(ValueError, match=r"theta must be a vector of 5 numbers, got shape \(4,\)"):
        objective(np.zeros(4))
    posterior = objective.factorise(SquaredExponential(), NOISE).posterior()
    with pytest.raises(ValueError, match="X must have 3 columns, got 1"):
        posterior.predict(X[:, :1])
    with pytest.raises(ValueError, match="X must have 3 columns, got 2"):
        posterior.joint(X[:, :2])
    mean, covariance = posterior.joint(X[:0])
    assert (mean.shape, covariance.shape) == ((0,), (0, 0))
    assert posterior.predict(X[:0])[0].shape == (0,)


@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (1, 3, 2), (2, 1, 1), (3, 5, 1)])
def test_the_smallest_problems(n: int, m: int, d: int) -> None:
    rng = np.random.default_rng(0)
    X, y, Z = rng.normal(size=(n, d)), rng.normal(size=n), rng.normal(size=(m, d))
    kernel = SquaredExponential([1.0] * d)
    model = sgpr_objective(kernel, NOISE, X, y, Z).factorise(kernel, NOISE)
    assert model.elbo == pytest.approx(dense.elbo(kernel, NOISE, X, y, Z), rel=1e-9)
    assert model.upper_bound == pytest.approx(dense.upper_bound(kernel, NOISE, X, y, Z), rel=1e-9)
