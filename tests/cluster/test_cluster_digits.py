"""What a fit's digits depend on: not on the number of workers, nor on other fits, and hardly on the partitions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from nearexact import SGPRegressor
from nearexact.gp.sparse import SparseObjective
from nearexact.kernels import SquaredExponential
from tests.problems import regression

da = pytest.importorskip("dask.array", reason="Dask is not installed")
distributed = pytest.importorskip("distributed", reason="Dask is not installed")
blocks = pytest.importorskip("nearexact.cluster.blocks", reason="Dask is not installed")
pytestmark = [
    pytest.mark.usefixtures("small_blocks"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

KERNEL = SquaredExponential().with_bounds(lengthscales="fixed", variance="fixed")  # then few evaluations are needed
X, Y = regression(120)


def model(m: int, noise: Any = 0.5) -> SGPRegressor:
    """A short fit, shorter still if the noise variance is known."""
    return SGPRegressor(KERNEL, max_inducing=m, procedure="paper", noise_bounds=noise, time_limit=None, random_state=0)


def chunked(partitions: int, y: Any = Y) -> tuple[Any, Any]:
    rows = -(-len(X) // partitions)
    return da.from_array(X, chunks=(rows, 3)), da.from_array(y, chunks=rows)


def fit(client: Any, m: int, y: Any = Y) -> SGPRegressor:
    return model(m).fit(*chunked(3, y), client=client)


def assert_same_digits(one: SGPRegressor, other: SGPRegressor) -> None:
    assert one.elbo_ == other.elbo_
    assert one.upper_bound_ == other.upper_bound_
    assert (one.inducing_points_ == other.inducing_points_).all()
    assert (one.predict(X) == other.predict(X)).all()


@pytest.fixture(scope="module")
def alone() -> Any:
    """A client of one worker."""
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.slow
def test_one_and_two_workers_give_the_same_digits(client: Any, alone: Any) -> None:
    evaluations = []
    for workers in (client, alone):
        rows, _, _ = blocks.standardised_rows(model(20), *chunked(5), workers)
        objective = SparseObjective(SquaredExponential([2.0, 2.0, 2.0]), 0.1, rows, None, rows.take(np.arange(30)).X)
        evaluations.append(objective(objective.theta0))
        rows.close()
    (value, gradient), (expected, expected_gradient) = evaluations
    assert value == expected
    assert (gradient == expected_gradient).all()
    assert_same_digits(fit(client, 20), fit(alone, 20))


@pytest.mark.slow
def test_two_fits_at_once_do_not_disturb_each_other(client: Any) -> None:
    targets = (Y, Y**2)
    expected = [fit(client, 5, y) for y in targets]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda y: fit(client, 5, y), targets))
    for one, other in zip(found, expected, strict=True):
        assert_same_digits(one, other)


@pytest.mark.slow
def test_a_fitted_bound_is_that_of_local_data_for_any_partitions(client: Any) -> None:
    expected = model(5, noise=(0.3, 3.0)).fit(X, Y)
    assert 0.3 < expected.noise_variance_ < 3.0  # so it was learnt
    for partitions in (1, 2, 5):
        found = model(5, noise=(0.3, 3.0)).fit(*chunked(partitions), client=client)
        assert found.elbo_ == pytest.approx(expected.elbo_, rel=1e-5)
        assert found.n_features_in_ == 3
