"""One fit over several processes: the same model as here, lazy predictions, and the errors of local data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import nearexact
from nearexact import GPRegressor, SGPRegressor
from nearexact.kernels import SquaredExponential
from tests.problems import regression

da = pytest.importorskip("dask.array", reason="Dask is not installed")
dd = pytest.importorskip("dask.dataframe", reason="Dask is not installed")
pytestmark = [
    pytest.mark.usefixtures("small_blocks"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

N = 100
KERNEL = SquaredExponential().with_bounds(lengthscales="fixed")  # then few evaluations are needed
FRAME = pd.DataFrame(regression(N)[0], columns=["a", "b", "c"], index=np.arange(N) * 3).assign(y=regression(N)[1])


def model(**options: Any) -> SGPRegressor:
    return SGPRegressor(KERNEL, max_inducing=10, time_limit=None, random_state=0, **options)


@pytest.fixture(scope="module")
def local() -> SGPRegressor:
    return model().fit(FRAME[["a", "b", "c"]], FRAME["y"])


def test_a_fit_is_that_of_local_data_and_needs_no_cluster_any_more(
    client: Any, local: SGPRegressor, tmp_path: Path
) -> None:
    frame = dd.from_pandas(FRAME, npartitions=3)
    fitted = model().fit(frame[["a", "b", "c"]], frame["y"], client=client)
    assert fitted.elbo_ == pytest.approx(local.elbo_, rel=1e-5)
    assert fitted.upper_bound_ == pytest.approx(local.upper_bound_, rel=1e-5)
    assert fitted.certificate_.verdict == local.certificate_.verdict
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    X = FRAME[["a", "b", "c"]]
    np.testing.assert_allclose(fitted.predict(X), local.predict(X), atol=1e-4)
    fitted.save(tmp_path / "model.nx")
    assert (nearexact.load(tmp_path / "model.nx").predict(X) == fitted.predict(X)).all()
    with pytest.raises(ValueError, match="does not hold its training data"):
        fitted.certify()
    there = fitted.certify(frame[["a", "b", "c"]], frame["y"], client=client)
    assert there.upper == pytest.approx(fitted.upper_bound_, rel=1e-9)
    assert fitted.certify(X, FRAME["y"], cg_iterations=0).upper == pytest.approx(fitted.upper_bound_, rel=1e-9)
    lazy = fitted.predict(frame[["a", "b", "c"]], return_std=True)
    assert list(lazy.columns) == ["mean", "std"]
    assert lazy.npartitions == 3
    computed = lazy.compute(scheduler="sync")
    assert (computed.index == FRAME.index).all()
    mean, std = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(computed["mean"], mean, rtol=1e-10)
    np.testing.assert_allclose(computed["std"], std, rtol=1e-10)


def test_arrays_give_lazy_arrays_with_the_same_chunks(local: SGPRegressor) -> None:
    X = FRAME[["a", "b", "c"]].to_numpy()
    chunked = da.from_array(X, chunks=(40, 2))
    mean, std = local.predict(chunked, return_std=True, noise=False)
    assert mean.chunks == std.chunks == ((40, 40, 20),)
    expected = local.predict(X, return_std=True, noise=False)
    np.testing.assert_allclose(mean.compute(scheduler="sync"), expected[0], rtol=1e-12)
    np.testing.assert_allclose(std.compute(scheduler="sync"), expected[1], rtol=1e-12)
    np.testing.assert_allclose(local.predict(chunked).compute(scheduler="sync"), expected[0], rtol=1e-12)
    several = GPRegressor(method="cholesky", time_limit=None).fit(X[:30], FRAME[["y", "a"]].to_numpy()[:30])
    lazy = several.predict(chunked)
    assert lazy.chunks == ((40, 40, 20), (2,))
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), several.predict(X), rtol=1e-12)
    with pytest.raises(ValueError, match="2 features"):
        local.predict(chunked[:, :2])
    with pytest.raises(ValueError, match="return_cov is for arrays"):
        local.predict(chunked, return_cov=True)


def test_wrong_data_give_the_errors_of_local_data_and_leave_the_model(client: Any, local: SGPRegressor) -> None:
    X, y = regression(N)
    broken = X.copy()
    broken[80, 1] = np.nan
    before = local.elbo_
    for inputs, targets in ((broken, y), (X, y[:-1]), (X[:, 0], y), (X[:1], y[:1])):
        with pytest.raises(ValueError) as expected:  # noqa: PT011  (the message is compared below)
            model().fit(inputs, targets)
        with pytest.raises(ValueError) as found:  # noqa: PT011
            local.fit(da.from_array(inputs, chunks=40), da.from_array(targets, chunks=40), client=client)
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
    with pytest.raises(ValueError, match="need a client"):
        local.fit(da.from_array(X), da.from_array(y))
    with pytest.raises(ValueError, match="for X that is a Dask collection"):
        local.fit(X, y, client=client)
    with pytest.raises(ValueError, match="not for Dask collections"):
        local.fit(da.from_array(X), da.from_array(y), sample_weight=np.ones(N), client=client)
    with pytest.raises(ValueError, match="tight"):
        model(bound="tight").fit(da.from_array(X), da.from_array(y), client=client)
    for inputs, targets in ((da.from_array(X), y), (X, da.from_array(y))):
        with pytest.raises(ValueError, match="update is for arrays, not for Dask collections"):
            local.update(inputs, targets)
    assert local.elbo_ == before
