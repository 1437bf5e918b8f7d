"""Cases that break naive implementations: each is repaired and counted, or a NumericalError says what to look at."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nearexact.gp import (
    NumericalError,
    Numerics,
    Repairs,
    SparseObjective,
    gpr_objective,
    minimise,
    safety,
    sgpr_objective,
)
from nearexact.gp.lapack import cholesky
from nearexact.gp.linalg import sample_gaussian
from nearexact.gp.safety import (
    ROUNDING_SAFETY,
    clamp_residuals,
    clamp_variances,
    jittered_cholesky,
    repair_trace,
    residual_error,
)
from nearexact.kernels import Kernel, Linear, Matern12, SquaredExponential
from tests.gp import dense
from tests.gp.helpers import Dented, assert_gradient_is_right, dented_q
from tests.problems import regression, standardised


def test_duplicated_inducing_points() -> None:
    """K_ZZ is singular; with the jitter the bound is that of the points without copies, and so is its gradient."""
    X, y = regression(80)
    kernel = SquaredExponential([0.6, 1.1, 2.0], 1.7)
    once = sgpr_objective(kernel, 0.1, X, y, X[:8])
    twice = sgpr_objective(kernel, 0.1, X, y, np.concatenate([X[:8], X[:8], X[:3]]))
    value, gradient = once(once.theta0)
    assert twice(twice.theta0)[0] == pytest.approx(value, rel=1e-7)
    assert twice(twice.theta0)[1] == pytest.approx(gradient, rel=1e-4)
    assert 1e-10 <= twice.repairs.largest_jitter <= 1e-8


def test_jitter_is_raised_only_as_far_as_needed_and_counted() -> None:
    X, y = regression(60)
    kernel = SquaredExponential(1e4, 1e6)  # K_ZZ is 1e6 in every entry, its other eigenvalues far below eps·1e6
    objective = sgpr_objective(kernel, 0.1, X, y, X[:40])
    model = objective.factorise(kernel.for_inputs(3), 0.1)
    assert objective.repairs.jitters_raised == 1
    assert 1e-10 < model.jitter == objective.repairs.largest_jitter <= 1e-6
    lml = gpr_objective(kernel, 0.1, X, y).factorise(kernel.for_inputs(3), 0.1).lml
    assert lml - 1.0 < model.elbo < lml + 1e-3
    well = sgpr_objective(SquaredExponential(), 0.1, X, y, X[:5])
    well(well.theta0)
    assert well.repairs == Repairs(largest_jitter=1e-10)


@pytest.mark.parametrize("kernel", [SquaredExponential(1e4), Matern12(1e4), SquaredExponential(1e4) + Linear(1e4)])
def test_lengthscales_far_beyond_the_data(kernel: Kernel) -> None:
    X, y = regression(60)
    objective = sgpr_objective(kernel, 0.1, X, y, X[:20])
    value, gradient = objective(objective.theta0)
    assert math.isfinite(value)
    assert np.isfinite(gradient).all()
    assert -value == pytest.approx(dense.elbo(kernel, 0.1, X, y, X[:20], objective.repairs.largest_jitter), rel=1e-5)


def test_lengthscales_far_below_the_data() -> None:
    """Every point by itself: K is diagonal, and the bound is that of noise for all but the inducing points."""
    X, y = regression(60)
    for kernel in (SquaredExponential(1e-4), Matern12(1e-4)):
        objective = sgpr_objective(kernel, 0.1, X, y, X[:20])
        assert objective(objective.theta0)[0] == pytest.approx(-dense.elbo(kernel, 0.1, X, y, X[:20]), rel=1e-9)
        assert np.isfinite(objective(objective.theta0)[1]).all()


@pytest.mark.parametrize("variance", [1.0, 1e3])
def test_noise_at_its_floor(variance: float) -> None:
    X, y = regression(150, noise=0.0)
    kernel = SquaredExponential([2.0, 3.0, 4.0], variance)
    objective = sgpr_objective(kernel, 1e-5, X, y, X[:60])
    assert objective.layout.unpack(objective.theta0)[1] == pytest.approx(1e-5, rel=1e-10)
    value, gradient = objective(objective.theta0)
    lml = gpr_objective(kernel, 1e-5, X, y).factorise(kernel, 1e-5).lml
    assert -value <= lml + 1e-6 * abs(lml)
    assert np.isfinite(gradient).all()
    off_floor = sgpr_objective(kernel, 2e-5, X, y, X[:60])
    assert_gradient_is_right(off_floor, off_floor.theta0)


# With a huge variance and Z = X, K − Q is nothing but rounding errors, of either sign.
LINE = np.linspace(-1.0, 1.0, 30)[:, None]
KERNELS_OF_LITTLE_REST = [SquaredExponential([lengthscale], 1e6) for lengthscale in np.linspace(0.05, 0.5, 40)]


def test_a_negative_trace_is_repaired_counted_and_constant() -> None:
    X, y = LINE, np.sin(3.0 * LINE[:, 0])
    repaired = 0
    for kernel in KERNELS_OF_LITTLE_REST:
        objective = sgpr_objective(kernel, 0.1, X, y, X)
        model = objective.factorise(kernel, 0.1)
        assert model.trace_repaired == (objective.repairs.traces_repaired == 1)
        assert model.trace == 0.0 if model.trace_repaired else model.trace >= 0.0
        if not model.trace_repaired:
            continue
        repaired += 1
        # Without its trace the bound is the Gaussian log density with covariance Q + sI, here that of the exact GP.
        exact = gpr_objective(kernel, 0.1, X, y)
        lml, by_parameter, by_noise = exact.value_and_gradient(kernel, 0.1)
        assert model.elbo == pytest.approx(lml, rel=1e-5)
        assert model.upper_bound == pytest.approx(model.elbo, rel=1e-8)
        _, ours_by_parameter, ours_by_noise = objective.value_and_gradient(kernel, 0.1)
        assert ours_by_noise == pytest.approx(by_noise, abs=1e-5)  # what the exact GP takes off for rounding is 3e-6
        for name in ("lengthscales", "variance"):
            assert torch.allclose(ours_by_parameter[name], by_parameter[name], rtol=1e-3)
    assert repaired >= 2


@pytest.mark.parametrize("memory_limit", ["1GB", "500kB"])
def test_negative_residuals_are_clamped_counted_and_constant(memory_limit: str) -> None:
    X, y = regression(400)
    kernel = Dented([0.6, 1.1, 2.0], 1.7)
    objective = sgpr_objective(kernel, 0.05, X, y, X[:30], bound="tight", memory_limit=memory_limit)
    assert objective.plan.keeps_v == (memory_limit == "1GB")
    model = objective.factorise(kernel, 0.05)
    assert model.residuals is not None
    assert model.residuals[:30].tolist() == [0.0] * 30
    assert (model.residuals >= 0.0).all()
    clamped = int((model.residuals == 0.0).sum())
    assert objective.repairs == Repairs(largest_jitter=1e-10, residuals_clamped=clamped)
    assert model.tight_bound == pytest.approx(
        dense.gaussian_log_density(y, dented_q(kernel, X, X[:30]) + 0.05 * np.eye(400))
        - 0.5 * np.log1p(np.maximum(kernel.diag(X) - np.diag(dented_q(kernel, X, X[:30])), 0.0) / 0.05).sum()
    )
    # By the lengthscales and the noise: by the variance, the dent makes the gradient of K_ZZ itself inconsistent.
    assert_gradient_is_right(objective, objective.theta0, step=1e-5, rel=1e-6, which=[0, 1, 2, 4])


def test_residual_clamping_rule() -> None:
    repairs = Repairs()
    assert clamp_residuals(torch.tensor([0.5, 0.0]), 1.5, repairs).tolist() == [0.5, 0.0]
    assert clamp_residuals(torch.tensor([0.5, -1e-9]), 1.0 + 1e-4, repairs).tolist() == [0.5, 0.0]
    assert clamp_residuals(torch.tensor([0.5, -1e-9]), 1.0 + 2e-3, repairs).isnan().all()
    assert repairs == Repairs(residuals_clamped=1, residuals_rejected=1)


def test_residuals_beyond_repair_make_the_tight_bound_nan_but_not_the_elbo() -> None:
    """q(x, x) > k(x, x) at some rows, while a row far from all inducing points keeps the trace positive."""
    X = np.concatenate([LINE, [[50.0]]])
    y = np.sin(3.0 * X[:, 0])

    def is_clamped(kernel: SquaredExponential) -> bool:
        tolerant = sgpr_objective(kernel, 0.1, X, y, LINE, bound="tight")
        tolerant(tolerant.theta0)
        return tolerant.repairs.residuals_clamped > 0

    kernel = next(kernel for kernel in KERNELS_OF_LITTLE_REST if is_clamped(kernel))
    objective = SparseObjective(kernel, 0.1, X, y, LINE, bound="tight", numerics=Numerics(trace_tolerance=0.0))
    value, gradient = objective(objective.theta0)
    assert math.isnan(value)
    assert np.isnan(gradient).all()
    model = objective.factorise(*objective.layout.unpack(objective.theta0))
    assert objective.repairs.residuals_rejected == 2
    assert model.trace > 0.0
    allowance = 0.5 * len(y) * model.residual_error / 0.1
    assert allowance > 0.0
    assert model.elbo - 2.0 * allowance - 0.01 < model.bounds.lower <= model.elbo - allowance  # what is left
    assert math.isfinite(model.bounds.upper)


def test_trace_repair_rule() -> None:
    repairs = Repairs()
    assert repair_trace(2.5, 1.5, repairs) == (2.5, False)
    assert repair_trace(-1e-9, 1.0 + 1e-4, repairs) == (0.0, True)
    assert repairs.traces_repaired == 1
    trace, repaired = repair_trace(-1e-9, 1.0 + 2e-3, repairs)
    assert math.isnan(trace)
    assert not repaired
    assert repairs == Repairs(traces_repaired=1, traces_rejected=1)


def test_a_trace_beyond_repair_makes_the_evaluation_nan() -> None:
    """The same rounding noise with no tolerance for it: every negative trace is rejected."""
    X, y = LINE, np.sin(3.0 * LINE[:, 0])

    def is_repaired(kernel: SquaredExponential) -> bool:
        tolerant = sgpr_objective(kernel, 0.1, X, y, X)
        return tolerant.factorise(*tolerant.layout.unpack(tolerant.theta0)).trace_repaired

    kernel = next(kernel for kernel in KERNELS_OF_LITTLE_REST if is_repaired(kernel))
    strict = SparseObjective(kernel, 0.1, X, y, X, numerics=Numerics(trace_tolerance=0.0))
    model = strict.factorise(*strict.layout.unpack(strict.theta0))
    assert math.isnan(model.trace)
    assert math.isnan(model.elbo)
    assert math.isnan(model.upper_bound)
    value, gradient = strict(strict.theta0)
    assert math.isnan(value)
    assert np.isnan(gradient).all()
    assert strict.repairs.traces_rejected == 2
    assert strict.repairs.traces_repaired == 0


def test_a_matrix_that_no_jitter_mends_raises_with_advice() -> None:
    K = torch.eye(3, dtype=torch.float64)
    K[0, 1] = K[1, 0] = 5.0
    with pytest.raises(
        NumericalError, match=r"K_ZZ \(3 x 3, diagonal 1 to 1\).*1e-01 added.*look for a signal variance"
    ):
        jittered_cholesky(K, Repairs(), what="K_ZZ")
    K[0, 1] = math.nan
    K[1, 0] = math.nan
    with pytest.raises(NumericalError, match="K_ZZ has entries that are not finite: look for huge inputs"):
        jittered_cholesky(K, Repairs(), what="K_ZZ")


def test_the_ladder_has_as_many_steps_as_it_says() -> None:
    K = -1e-3 * torch.eye(2, dtype=torch.float64)  # needs 1e-2, the ninth step
    L, jitter = jittered_cholesky(K.clone(), Repairs(), what="K")
    assert jitter == pytest.approx(1e-2)
    assert torch.allclose(L @ L.T, K + jitter * torch.eye(2, dtype=torch.float64))
    with pytest.raises(NumericalError):
        jittered_cholesky(K.clone(), Repairs(), what="K", numerics=Numerics(cholesky_attempts=8))
    repairs = Repairs()
    _, jitter = jittered_cholesky(torch.eye(2, dtype=torch.float64), repairs, what="K + sI", first_jitter=0.0)
    assert (jitter, repairs) == (0.0, Repairs())


def test_overflowing_hyperparameters_fail_without_a_crash() -> None:
    X, y = regression(30)
    objective = sgpr_objective(SquaredExponential(), 0.1, X, y, X[:5])
    overflow = np.full_like(objective.theta0, 1e200)
    with pytest.raises(NumericalError):
        objective(overflow)
    value, gradient = objective(np.full_like(objective.theta0, np.inf))
    assert math.isnan(value)
    assert np.isnan(gradient).all()
    with pytest.raises(NumericalError):
        gpr_objective(SquaredExponential(), 0.1, X, y)(np.full_like(objective.theta0, 1e308))


def test_negative_variances_are_clamped_and_counted() -> None:
    repairs = Repairs()
    assert clamp_variances(torch.tensor([0.5, -1e-12, 0.0, -1e-9]), repairs).tolist() == [0.5, 0.0, 0.0, 0.0]
    assert repairs.variances_clamped == 2
    # Real ones: predictions at the data of models with hardly any noise and a huge variance. How huge it must be
    # depends on how a processor rounds; where it is too huge, nothing can be computed.
    X, predicted, joint = np.linspace(-1.0, 1.0, 200)[:, None], 0, 0
    for signal, lengthscale in itertools.product([1e8, 3e8, 1e9, 3e9], np.linspace(0.3, 0.6, 15)):
        kernel = SquaredExponential([lengthscale], signal)
        objective = sgpr_objective(kernel, 1e-5, X, np.sin(X[:, 0]), X[::4])
        try:
            posterior = objective.factorise(kernel, 1e-5).posterior()
        except NumericalError:
            continue
        _, variance = posterior.predict(X)
        assert (variance >= 0.0).all()
        before = objective.repairs.variances_clamped
        _, covariance = posterior.joint(X)
        assert (covariance.diagonal() >= 0.0).all()
        predicted, joint = predicted + before, joint + objective.repairs.variances_clamped - before
    assert predicted > 0
    assert joint > 0


def test_nan_in_the_middle_of_a_line_search_restarts_the_optimiser() -> None:
    """An objective that is NaN in places that L-BFGS visits: training ends at the optimum that it reaches without."""
    X, y = regression(120)
    objective = sgpr_objective(SquaredExponential(), 0.01, X, y, X[:30])
    free = minimise(objective, objective.theta0)
    assert free.restarts == 0
    first_steps = []
    minimise(objective, objective.theta0, callback=lambda step: first_steps.append(step.theta))
    forbidden = float(np.abs(first_steps[0] - objective.theta0).max()) * 0.9  # no first step as long as it took

    def fragile(theta: np.ndarray) -> tuple[float, np.ndarray]:
        if fragile.calls == 1 and np.abs(theta - objective.theta0).max() > forbidden:  # type: ignore[attr-defined]
            return math.nan, np.full_like(theta, math.nan)
        fragile.calls += 1  # type: ignore[attr-defined]
        return objective(theta)

    fragile.calls = 0  # type: ignore[attr-defined]
    restarted = minimise(fragile, objective.theta0)
    assert restarted.restarts >= 1
    assert restarted.value == pytest.approx(free.value, rel=1e-4)


def test_residuals_below_zero_show_how_far_bounds_may_be_off() -> None:
    """Where the signal dwarfs the noise, residuals that were set to zero would let bounds meet that prove nothing."""
    assert residual_error(1.0, 5.0) == residual_error(0.2, 5.0) == 0.0
    assert residual_error(1.0 + 1e-9, 5.0) == pytest.approx(ROUNDING_SAFETY * 5e-9, rel=1e-6)
    X, y = standardised(60)
    kernel, s = SquaredExponential([1.0, 1.0, 1.0]), 0.1
    objective = SparseObjective(kernel, s, X, y, X[:20])
    f = objective.factorise(kernel, s, residuals=True)
    looser = replace(f, residual_error=1e-3)
    assert looser.elbo == f.elbo  # what is maximised stays as it is
    log_det, quadratic = 60 * 1e-3 / s, f.bounds.quadratic.upper * (1.0 / (1.0 - 1e-3 / s) - 1.0)
    assert f.bounds.lower - looser.bounds.lower == pytest.approx(0.5 * (log_det + quadratic))
    assert looser.bounds.upper > f.bounds.upper


def test_jitter_that_is_lost_in_rounding_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight attempts before the one that succeeds all but one would change nothing."""
    tried: list[float] = []

    def noted(K: torch.Tensor, out: torch.Tensor | None = None) -> tuple[torch.Tensor, bool]:
        tried.append(float(K[0, 0]) - 1e8)
        return cholesky(K, out)

    X = torch.linspace(0.0, 1.0, 400, dtype=torch.float64)[:, None]
    K = SquaredExponential(3.0, 1e8)(X)
    monkeypatch.setattr(safety, "cholesky", noted)
    L, jitter = jittered_cholesky(K.clone(), Repairs(), what="K + sI", first_jitter=0.0)
    assert len(tried) <= 4
    assert 1e-7 < jitter <= 1e-4
    assert float((L @ L.T - K).diagonal().mean()) == pytest.approx(jitter, rel=0.5)


def test_draws_are_there_where_rounding_leaves_a_covariance_negative_eigenvalues() -> None:
    repairs, mean = Repairs(), torch.zeros(3, dtype=torch.float64)
    axes = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    covariance = axes @ torch.diag(torch.tensor([4.0, 1.0, -0.1], dtype=torch.float64)) @ axes.T
    draws = sample_gaussian(mean, covariance, 20_000, 0, repairs)
    assert repairs.variances_clamped == 1
    assert torch.allclose((draws @ axes).var(0), torch.tensor([4.0, 1.0, 0.0], dtype=torch.float64), atol=0.15)
    with pytest.raises(NumericalError, match="not finite"):
        sample_gaussian(mean, torch.full((3, 3), torch.nan, dtype=torch.float64), 2, 0, Repairs())
