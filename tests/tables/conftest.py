"""A fit that several test modules look at."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from nearexact.tables import Fitted, fit


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = 100.0 * np.sin(2.0 * X[:, 0]) + 20.0 * X[:, 1] + 10.0 * rng.normal(size=200)
    path = tmp_path_factory.mktemp("summary") / "data.parquet"
    pd.DataFrame({"wavy": X[:, 0], "straight": X[:, 1], "none": X[:, 2], "y": y}).to_parquet(path)
    return fit(path, "y", kernel="se", time_limit="20s", test_fraction=0.3, refit=False)
