"""Data frames in the place of files: the same models, and predictions with the index of the frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearexact import tables
from nearexact.kernels import Linear, SquaredExponential
from nearexact.model_header import read_header
from nearexact.tables.reading import FrameTable, open_table, read
from nearexact.tables.terminal import kernel_text

OPTIONS = {"kernel": "se", "time_limit": "1s", "missing": "median", "test_fraction": 0.2}


def houses(n: int = 60) -> pd.DataFrame:
    """Every kind of column that a frame can have, with missing cells."""
    rng = np.random.default_rng(0)
    town = rng.choice(["Oslo", "Rome", "Nîmes"], n)
    frame = pd.DataFrame(
        {
            "size": rng.uniform(50.0, 200.0, n),
            "town": town,
            "kind": pd.Categorical(rng.choice(["flat", "house"], n)),
            "sold": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "new": rng.random(n) < 0.5,
            "rooms": pd.array(rng.integers(1, 6, n), dtype="Int64"),
        },
        index=[f"house {i}" for i in range(n)],
    )
    frame["price"] = 3.0 * frame["size"] + 50.0 * (town == "Rome") + rng.normal(size=n)
    frame.loc["house 3", "size"] = np.nan
    frame.loc["house 4", "town"] = None
    frame.loc["house 5", "rooms"] = pd.NA
    frame.loc["house 6", "sold"] = pd.NaT
    return frame


def test_a_frame_gives_the_model_that_its_file_gives(tmp_path: Path) -> None:
    frame = houses()
    frame.reset_index(drop=True).to_parquet(tmp_path / "houses.parquet")
    from_frame = tables.fit(frame, "price", **OPTIONS)  # type: ignore[arg-type]
    from_file = tables.fit(tmp_path / "houses.parquet", "price", **OPTIONS)  # type: ignore[arg-type]
    assert from_frame.prepared.recipe == from_file.prepared.recipe
    assert np.array_equal(from_frame.prepared.train, from_file.prepared.train)
    kinds = {column.name: column.kind for column in from_frame.prepared.recipe.columns}
    assert kinds == {
        "size": "number", "town": "category", "kind": "category", "sold": "date", "new": "boolean", "rooms": "number",
    }  # fmt: skip
    from_frame.save(tmp_path / "model.nx")
    new = frame.drop(columns="price")
    predicted = from_frame.predict(new)
    assert predicted.index.equals(frame.index)
    assert list(predicted.columns) == ["mean", "std", "lower", "upper"]
    tables.predict(tmp_path / "model.nx", new, tmp_path / "out.parquet")
    assert np.array_equal(pd.read_parquet(tmp_path / "out.parquet").to_numpy(), predicted.to_numpy())
    assert np.array_equal(tables.predict_frame(tmp_path / "model.nx", new).to_numpy(), predicted.to_numpy())
    tables.predict(tmp_path / "model.nx", new, tmp_path / "out.parquet", keep="kind,rooms")
    kept = pd.read_parquet(tmp_path / "out.parquet")
    assert list(kept.columns) == ["kind", "rooms", "mean", "std", "lower", "upper"]
    assert kept["kind"].tolist() == new["kind"].tolist()
    assert kept["rooms"].isna().tolist() == new["rooms"].isna().tolist()
    dropped = from_frame.predict(new, missing="drop")
    assert dropped.isna().any(axis=1).sum() == 4
    assert tables.certify(tmp_path / "model.nx", frame).lower == pytest.approx(
        from_frame.model.certificate_.lower, abs=1e-6
    )


@pytest.mark.parametrize("kind", [int, float, str])
def test_categories_stay_categories_where_numbers_name_them(kind: type, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.choice([10, 20, 30], 60)
    frame = pd.DataFrame({"code": codes, "y": np.where(codes == 20, 5.0, 0.0) + rng.normal(size=60)})
    frame["code"] = pd.Categorical(frame["code"].astype(kind).astype(object).where(frame.index != 7))
    frame.to_parquet(tmp_path / "t.parquet")
    for table in (frame, tmp_path / "t.parquet"):
        fitted = tables.fit(table, "y", kernel="se", time_limit="0.5s", missing="median")
        (column,) = fitted.prepared.recipe.columns
        assert (column.kind, column.categories) == ("category", ("10", "20", "30"))
        expected = fitted.predict(frame).to_numpy()
        for codes_of_file in (pd.Series(codes.astype(float)), pd.Series(codes.astype(str))):
            cells = codes_of_file.where(frame.index != 7)
            np.testing.assert_array_equal(fitted.predict(pd.DataFrame({"code": cells})).to_numpy(), expected)


def test_any_kernel_can_be_asked_for(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.linspace(0.0, 6.0, 30), "y": np.sin(np.linspace(0.0, 6.0, 30))})
    kernel = SquaredExponential().with_bounds(variance="fixed", lengthscales=(0.1, [9.0])) + Linear()
    fitted = tables.fit(frame, "y", kernel=kernel, time_limit="0.5s", test_fraction=0.0)
    assert fitted.model.kernel_.bounds == kernel.bounds
    assert fitted.summary.kernel == repr(kernel)
    fitted.save(tmp_path / "model.nx")
    assert kernel_text(read_header(tmp_path / "model.nx").entries["kernel"]) == repr(fitted.model.kernel_)
    by_name = tables.fit(frame, "y", kernel="(arccosine-split + se)*linear", time_limit="0.5s", test_fraction=0.0)
    assert by_name.summary.kernel == "(arccosine-split + se)*linear"
    with pytest.raises(ValueError, match="kernel must be a name such as"):
        tables.fit(frame, "y", kernel=3)  # type: ignore[arg-type]


def test_several_targets_may_be_a_list() -> None:
    x = np.linspace(0.0, 6.0, 30)
    frame = pd.DataFrame({"x": x, "a, b": np.sin(x), "c": np.cos(x)})
    fitted = tables.fit(frame, ["a, b", "c"], kernel="se", time_limit="0.5s", test_fraction=0.0)
    assert fitted.prepared.recipe.several == ("a, b", "c")
    assert list(fitted.predict(frame))[::4] == ["a, b_mean", "c_mean"]
    one = tables.fit(frame, ["c"], kernel="se", time_limit="0.5s", test_fraction=0.0, ignore=["a, b"])
    assert list(one.predict(frame)) == ["mean", "std", "lower", "upper"]
    with pytest.raises(ValueError, match="a target is needed"):
        tables.fit(frame, [])


def test_pieces_of_a_frame_are_the_frame() -> None:
    frame = houses()
    whole = read(open_table(frame), ["town", "size"])
    assert sum(len(piece.frame) for piece in FrameTable(frame).pieces(["size"], rows=7)) == len(frame)
    assert whole["size"].to_numpy() == pytest.approx(frame["size"].to_numpy(), nan_ok=True)
    assert whole["town"].dropna().tolist() == frame["town"].dropna().tolist()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"x": [1, "a", 2.5], "y": 1.0}), "column 'x' of the data frame holds cells of different kinds"),
        (pd.DataFrame([[1, 2, 3]], columns=["x", "x", "y"]), "the data frame has more than one column of the name 'x'"),
        (pd.DataFrame({"x": [1.0, 2.0]}), "the data frame has no column 'y'; it has 'x'"),
        (pd.DataFrame({"x": pd.to_timedelta([1, 2, 3], unit="D"), "y": 1.0}), "column 'x' holds duration"),
        (pd.DataFrame({"x": pd.cut(pd.Series(range(9)), 3), "y": 1.0}), "column 'x' holds .*interval.*leave it out"),
    ],
)
def test_what_a_frame_lacks_is_named(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tables.fit(frame, "y")
