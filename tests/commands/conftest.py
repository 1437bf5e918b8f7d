"""A model that both test modules look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearexact.cli import main
from tests.commands.helpers import QUICK, houses, messy


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the messy table with its gaps filled in."""
    folder = tmp_path_factory.mktemp("houses")
    frame = houses()
    frame.loc[[3, 17], "size"] = np.nan
    frame.loc[5, "city"] = None
    (folder / "messy.csv").write_bytes(messy(frame))
    options = ["--missing", "median", "-o", str(folder / "model.nx"), *QUICK, "--quiet"]
    assert main(["fit", str(folder / "messy.csv"), "--target", "price", *options]) == 0
    return folder / "model.nx"
