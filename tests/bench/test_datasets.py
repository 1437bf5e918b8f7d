"""Data sets: what is in the registry, where files come from, how they are split."""

from __future__ import annotations

import gzip
import hashlib
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nearexact.bench import datasets
from nearexact.bench.data_cards import CARDS
from nearexact.bench.datasets import PAPER, REGISTRY, RemoteFile, find, load_split, split

# Training rows and inputs, from the tables of Ober et al.
PUBLISHED = {
    "bike": (14772, 17), "elevators": (14109, 18), "keggdirected": (41502, 20), "keggundirected": (54066, 27),
    "kin40k": (34000, 8), "kin8nm": (6963, 8), "naval": (10143, 14), "pol": (12750, 26), "power": (8132, 4),
    "protein": (38870, 9), "skillcraft": (2837, 19), "tamielectric": (38913, 3),
}  # fmt: skip


def test_the_paper_has_twelve() -> None:
    assert set(PAPER) == set(PUBLISHED)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.data(name)) for name in REGISTRY])
def test_sizes_are_the_published_ones_and_scaling_is_by_the_training_part(name: str) -> None:
    data = load_split(name, seed=0)
    n, d = data.X_train.shape
    if name in PUBLISHED:
        assert (n, d) == PUBLISHED[name]
    assert len(data.y_train) + len(data.y_test) == REGISTRY[name].rows
    np.testing.assert_allclose(data.y_train.mean(), 0.0, atol=1e-9)
    spread = data.X_train.std(0)
    np.testing.assert_allclose(spread[spread > 1e-6], 1.0, rtol=1e-6)
    # The mean predictor's negative log likelihood on standardised targets.
    variance = data.y_train.var()
    negative = 0.5 * n * math.log(2 * math.pi * variance) + 0.5 * float(data.y_train @ data.y_train) / variance
    assert negative == pytest.approx(0.5 * n * (math.log(2 * math.pi) + 1.0), rel=1e-9)


@pytest.mark.parametrize("name", ["step", "heteroscedastic", "conformance", "diabetes"])
def test_some_need_no_files_and_are_always_the_same(name: str) -> None:
    (X, y), (again, _) = REGISTRY[name].load(), REGISTRY[name].load()
    np.testing.assert_array_equal(X, again)
    assert X.shape == (REGISTRY[name].rows, REGISTRY[name].inputs)
    assert np.isfinite(y).all()


def test_the_step_is_a_step() -> None:
    X, y = REGISTRY["step"].load()
    assert np.abs(X).max() <= 2.0
    residual = y - (X[:, 0] > 0.0)
    assert 0.04 < residual.std() < 0.06


def test_splits_differ_by_seed_and_do_not_leak() -> None:
    X, y = np.arange(200.0).reshape(100, 2), np.arange(100.0)
    first, again, other = split(X, y, 0), split(X, y, 0), split(X, y, 1)
    np.testing.assert_array_equal(first.X_train, again.X_train)
    assert (first.X_train != other.X_train).any()
    assert (len(first.y_train), len(first.y_test)) == (85, 15)
    changed = y.copy()
    order = np.random.default_rng(0).permutation(100)
    changed[order[85:]] = 1e9  # test rows
    np.testing.assert_array_equal(split(X, changed, 0).y_train, first.y_train)


def test_files_are_taken_from_the_folder_and_their_content_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEAREXACT_DATA", str(tmp_path))
    (tmp_path / "some.txt").write_text("1 2\n")
    good = RemoteFile("some.txt", "https://example.invalid/some.txt", hashlib.sha256(b"1 2\n").hexdigest())
    assert datasets.fetch(good) == tmp_path / "some.txt"
    bad = RemoteFile("some.txt", "https://example.invalid/some.txt", "0" * 64)
    with pytest.raises(ValueError, match=r"some\.txt is not the file it should be: sha256 0000"):
        datasets.fetch(bad)


def test_without_file_and_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEAREXACT_DATA", raising=False)
    monkeypatch.setenv("NEAREXACT_CACHE", str(tmp_path))
    file = RemoteFile("some.txt", "http://127.0.0.1:9/some.txt", "0" * 64)  # nobody listens there
    with pytest.raises(OSError, match=r"some\.txt is not on this machine .* from http://127.* set NEAREXACT_DATA"):
        datasets.fetch(file)


def test_downloads_are_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import http.server
    import threading

    content = b"3 4\n"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.delenv("NEAREXACT_DATA", raising=False)
    monkeypatch.setenv("NEAREXACT_CACHE", str(tmp_path))
    url = f"http://127.0.0.1:{server.server_port}/some.txt"
    file = RemoteFile("some.txt", url, hashlib.sha256(content).hexdigest())
    try:
        assert datasets.fetch(file, progress=True).read_bytes() == content
        with pytest.raises(ValueError, match="did not give the file it should"):
            datasets.fetch(RemoteFile("other.txt", url, "0" * 64))
    finally:
        server.shutdown()
    assert datasets.fetch(file).read_bytes() == content  # now from the cache


def test_a_checksum_that_is_not_known_is_pinned_at_the_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NEAREXACT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NEAREXACT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data" / "some.txt"
    path.parent.mkdir()
    path.write_text("1 2\n")
    file = RemoteFile("some.txt", "https://example.invalid/some.txt", None)
    assert datasets.known_checksum(file) is None
    assert datasets.fetch(file) == path
    pinned = hashlib.sha256(b"1 2\n").hexdigest()
    assert datasets.known_checksum(file) == pinned
    assert f"no checksum is known; sha256 {pinned} is pinned" in caplog.text
    path.write_text("1 3\n")
    with pytest.raises(ValueError, match=rf"some\.txt is not the file it should be: sha256 {pinned} expected"):
        datasets.fetch(file)


def test_a_table_in_two_files_is_read_as_one(tmp_path: Path) -> None:
    song = find("song")
    assert [file.name for file in song.files] == ["song.csv.gz", "song1.csv.gz"]
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path, text in zip(paths, ("1,2,3\n4,5,6\n", "7,8,9\n"), strict=True):
        path.write_text(text)
    X, y = song.read(paths)
    np.testing.assert_array_equal(X, [[1, 2], [4, 5], [7, 8]])
    np.testing.assert_array_equal(y, [3, 6, 9])


def test_every_data_set_has_a_card_and_paper_names_the_twelve() -> None:
    assert set(CARDS) == set(REGISTRY)
    assert datasets.expand(["step", "paper"]) == ["step", *PAPER]
    assert set(REGISTRY) - set(datasets.MODEST) == {"3droad", "song", "buzz", "houseelectric"}


@pytest.mark.data("bike", "tamielectric", "pol")
def test_what_cards_say_about_defects_is_so() -> None:
    X, y = find("bike").load()
    users = X[:, 15] - X[:, 15].min() + X[:, 16] - X[:, 16].min()
    assert np.ptp(y - np.log(users)) < 2e-4  # what is left is rounding in the file
    np.testing.assert_array_equal(X[:, [4, 5]], X[:, [0, 1]])
    X, y = find("tamielectric").load()
    assert np.histogram(y, 10)[0] == pytest.approx(np.full(10, len(y) / 10), rel=0.03)
    assert len(np.unique(find("pol").load()[1])) == 11


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_of_ones_own(tmp_path: Path, suffix: str) -> None:
    columns = {"a": [1, 2, 3, 4], "price": [1.5, 2.5, 3.5, 4.5], "b": [True, False, True, True]}
    frame = pd.DataFrame({name: 3 * values for name, values in columns.items()})
    path = tmp_path / f"table{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    X, y = find(f"{path}:price").load()
    np.testing.assert_array_equal(X, 3 * [[1, 1], [2, 0], [3, 1], [4, 1]])
    np.testing.assert_array_equal(y, 3 * [1.5, 2.5, 3.5, 4.5])


def test_a_file_of_ones_own_is_read_as_for_a_fit(tmp_path: Path) -> None:
    """In any dialect, compressed, with categories, dates and booleans, and with all rows in their order."""
    rows = ["1,5;Köln;31.12.2020;yes;10", "2,5;Bonn;01.01.2021;no;20,5", "3;Köln;02.01.2021;no;30"]
    text = "\r\n".join(["Größe;Stadt;am;neu;Preis", *(4 * rows)])
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(text.encode("utf-8-sig")))
    dataset = find(f"{path}:Preis")
    X, y = dataset.load()
    assert (dataset.rows, dataset.inputs) == (12, 4)
    np.testing.assert_array_equal(X, 4 * [[1.5, 1, 18627, 1], [2.5, 0, 18628, 0], [3.0, 1, 18629, 0]])
    np.testing.assert_array_equal(y, 4 * [10.0, 20.5, 30.0])


def test_missing_cells_are_filled_in_from_the_rows_to_train_on(tmp_path: Path) -> None:
    """An oracle by hand: pandas' median and mode of the training part, and its own scaling."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "kind": rng.choice(["x", "y", "z"], 60), "t": rng.normal(size=60)})
    frame.loc[::3, "a"] = None
    frame.loc[1::4, "kind"] = None
    frame.loc[[5, 17], "t"] = None  # rows without a target are no rows
    frame.to_csv(tmp_path / "table.csv", index=False)
    frame = frame.dropna(subset="t", ignore_index=True)
    for seed in (0, 1):
        data = load_split(f"{tmp_path / 'table.csv'}:t", seed)
        order = np.random.default_rng(seed).permutation(58)
        train, test = order[:49], order[49:]
        a = frame["a"].fillna(frame["a"].iloc[train].median()).to_numpy()
        kind = frame["kind"].fillna(frame["kind"].iloc[train].mode()[0])
        X = np.column_stack([a, *(kind == name for name in "xyz")])
        mean, std = X[train].mean(0), X[train].std(0)
        np.testing.assert_allclose(data.X_train, (X[train] - mean) / std)
        np.testing.assert_allclose(data.X_test, (X[test] - mean) / std)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("a,b\n1,2\n", "table.csv:c", "has no column 'c'; it has 'a', 'b'"),
        ("a,b\n1,2\n2,3\nx,4\n", "table.csv:a", "column 'a' has 'x' in row 3, where a finite number is expected"),
        ("a,b\n1,2\n2,3\n", "table.csv:a", "table.csv:a': at least 10 rows without missing values are needed, got 2"),
        ("a,b,c\n" + 20 * "1,2,3\n" + "2,3,4", "table.csv:a,b", "one target, got 'a', 'b'"),
        ("a\n1\n2\n", "table.csv:a", "has no column to learn from besides the target"),
        ("", "table.csv:a", "cannot be read as a table: it is empty"),
        ("a,b\n1,2\n", "missing.csv:a", "there is no file"),
        ("a,b\n1,2\n", "iris", "there is no data set 'iris'; there are bike, elevators"),
    ],
)
def test_wrong_names_and_files_are_explained(content: str, name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        find(str(tmp_path / name) if ":" in name else name)
