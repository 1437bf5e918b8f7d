"""A model that several test modules look at, and folders of files to give to commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nearexact
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


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was not fitted to a file."""
    rng = np.random.default_rng(0)
    model = nearexact.SGPRegressor(random_state=0).fit(rng.normal(size=(20, 1)), rng.normal(size=20))
    model.save(path := tmp_path_factory.mktemp("bare") / "bare.nx")
    return path


@pytest.fixture
def small_files(fitted: Path, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the present folder: small tables and two models, of which only one was fitted to a file."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.normal(size=30), "y": rng.normal(size=30)}).to_csv("t.csv", index=False)
    pd.DataFrame({"x": range(9), "y": range(9)}).to_csv("few.csv", index=False)
    pd.DataFrame({"x": rng.normal(size=30), "y": 3.0}).to_csv("flat.csv", index=False)
    Path("model.nx").write_bytes(fitted.read_bytes())
    Path("bare.nx").write_bytes(bare.read_bytes())


@pytest.fixture
def linked_files(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the present folder: a table, a model, and other names for both."""
    monkeypatch.chdir(tmp_path)
    houses(30).to_csv("t.csv", index=False)
    Path("folder").mkdir()
    Path("model.nx").write_bytes(fitted.read_bytes())
    for link, target in (("soft.csv", "t.csv"), ("to-new", "new"), ("model.csv", "model.nx")):
        Path(link).symlink_to(target)
    Path("hard.csv").hardlink_to("t.csv")
