"""Tables, read in pieces: CSV in any dialect, gzipped or not, Parquet, and data frames.

A piece is a data frame whose columns are numbers, booleans, dates or text; those of a CSV file are always text, since
a piece does not show what comes in the next one. `columns` decides what the columns mean.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from nearexact.tables.cells import MISSING
from nearexact.tables.dialect import PARQUET, Dialect, Spelling, is_gzip, sniff, starts_with

ROWS_AT_ONCE, CELLS_AT_ONCE, FEWEST_ROWS_AT_ONCE = 2**16, 2**20, 64
UNREADABLE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, TypeError, ValueError, zlib.error,
    pa.ArrowException,
)  # fmt: skip  # what the readers raise on damaged or foreign files


Source: TypeAlias = str | os.PathLike[str] | pd.DataFrame  # where a table is: a file, or a data frame


class TableFile(Protocol):
    """A file with named columns, or a data frame."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""

    @property
    def decimal(self) -> str:
        """The decimal mark of numbers that are text."""

    def pieces(self, columns: Sequence[str], rows: int = ROWS_AT_ONCE) -> Iterator[pd.DataFrame]:
        """These columns in this order, so many rows at a time; at least one piece, which may have no rows."""


def open_table(
    source: Source,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    wanted: Collection[str] = (),
) -> TableFile:
    """A data frame, or a CSV or Parquet file, recognised by its content.

    A first row with one of the wanted names is a header.
    """
    file = FrameTable(source) if isinstance(source, pd.DataFrame) else _open_file(Path(source), spelling, wanted)
    twice = sorted(name for name, count in Counter(file.columns).items() if count > 1)
    if twice:
        raise ValueError(f"{file.name} has more than one column of the name {', '.join(map(repr, twice))}")
    return file


def _open_file(path: Path, spelling: Spelling, wanted: Collection[str]) -> TableFile:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    with _explained(str(path)):
        if starts_with(path, PARQUET):
            schema = pq.read_schema(path)
            return ParquetTable(path, tuple(name for name in schema.names if not name.startswith("__index_level_")))
        return CsvTable(path, sniff(path, spelling, wanted))


def rows_at_once(columns: int) -> int:
    """Rows of a piece: fewer where there are many columns, so that all pieces need about the same memory."""
    return min(max(CELLS_AT_ONCE // max(columns, 1), FEWEST_ROWS_AT_ONCE), ROWS_AT_ONCE)


def read(file: TableFile, columns: Sequence[str]) -> pd.DataFrame:
    """The whole of these columns."""
    return pd.concat(list(file.pieces(columns)), ignore_index=True)


@dataclass(frozen=True)
class CsvTable:
    """Cells are text; missing ones are NaN."""

    path: Path
    dialect: Dialect

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.dialect.columns

    @property
    def decimal(self) -> str:
        return self.dialect.decimal

    def __str__(self) -> str:
        return str(self.dialect)

    def pieces(self, columns: Sequence[str], rows: int = ROWS_AT_ONCE) -> Iterator[pd.DataFrame]:
        with _explained(self.name):
            reader = pd.read_csv(
                self.path,
                sep=self.dialect.delimiter,
                encoding=self.dialect.encoding,
                compression="gzip" if is_gzip(self.path) else None,
                header=0 if self.dialect.header else None,
                names=list(self.columns),
                index_col=False,
                dtype=str,
                na_values=list(MISSING),
                keep_default_na=False,
                skipinitialspace=True,
                chunksize=min(rows, rows_at_once(len(self.columns))),  # all are read: a choice would hide surplus cells
            )
        with reader:
            empty = True
            while True:
                with _explained(self.name):
                    piece = next(reader, None)
                if piece is None:
                    break
                empty = False
                yield piece[list(columns)]
            if empty:
                yield pd.DataFrame({name: pd.Series(dtype="str") for name in columns})


@dataclass(frozen=True)
class ParquetTable:
    """Columns are float64, boolean with missing values, dates in UTC, or text."""

    path: Path
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def decimal(self) -> str:
        return "."

    def __str__(self) -> str:
        return "Parquet"

    def pieces(self, columns: Sequence[str], rows: int = ROWS_AT_ONCE) -> Iterator[pd.DataFrame]:
        empty = True
        with _explained(self.name):
            file = pq.ParquetFile(self.path, pre_buffer=False)  # it would hold whole row groups
        with file:
            rows = min(rows, rows_at_once(len(columns)))
            batches = file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False)
            while True:
                with _explained(self.name):
                    batch = next(batches, None)
                    piece = None if batch is None else _frame(pa.Table.from_batches([batch]), columns)
                if piece is None:
                    break
                empty = False
                yield piece
            if empty:
                with _explained(self.name):
                    piece = _frame(file.schema_arrow.empty_table(), columns)
                yield piece


@dataclass(frozen=True, eq=False)
class FrameTable:
    """A data frame, whose columns become what those of a Parquet file are."""

    frame: pd.DataFrame
    name: ClassVar[str] = "the data frame"
    decimal: ClassVar[str] = "."

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(map(str, self.frame.columns))

    def __str__(self) -> str:
        return "data frame"

    def pieces(self, columns: Sequence[str], rows: int = ROWS_AT_ONCE) -> Iterator[pd.DataFrame]:
        whole = {name: self._column(name) for name in columns}
        for first in range(0, max(len(self.frame), 1), rows):
            yield pd.DataFrame({name: series.iloc[first : first + rows] for name, series in whole.items()})

    def _column(self, name: str) -> pd.Series:
        cells = self.frame.iloc[:, self.columns.index(name)]
        try:
            column = pa.chunked_array([pa.array(cells, from_pandas=True)])
        except (pa.ArrowException, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"column {name!r} of the data frame holds cells of different kinds: {reason}") from error
        return _series(name, column)


def _frame(table: pa.Table, columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({name: _series(name, table.column(name)) for name in columns}, index=range(len(table)))


def _series(name: str, column: pa.ChunkedArray) -> pd.Series:
    kind = column.type
    is_a = pa.types
    if is_a.is_dictionary(kind):
        return _series(name, column.cast(kind.value_type))
    if is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_decimal(kind) or is_a.is_null(kind):
        return pd.Series(column.cast(pa.float64(), safe=False).to_numpy())
    if is_a.is_boolean(kind):
        return column.to_pandas().astype("boolean")
    if is_a.is_date(kind) or is_a.is_timestamp(kind):
        moments = column.cast(pa.timestamp("us", tz="UTC"), safe=False)
        return pd.Series(pd.DatetimeIndex(moments.to_pandas()))
    if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind):
        column.validate(full=True)  # else bytes that are not text fail later, and less clearly
        return column.to_pandas()
    raise ValueError(f"column {name!r} holds {kind}: numbers, booleans, dates and text can be used; leave it out")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn every error of a reader into a ValueError of one line that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # it says that cells would be lost
            yield
    except PermissionError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not {error.encoding.upper()} text (byte 0x{error.object[error.start]:02x}): pass its encoding,"
            " such as latin-1"
        ) from error
    except pd.errors.ParserWarning as error:
        raise ValueError(f"{name} cannot be read as a table: its rows have more cells than its header") from error
    except UNREADABLE as error:
        reason = " ".join(str(error).replace("Error tokenizing data. C error: ", "").split())
        raise ValueError(f"{name} cannot be read as a table: {reason or type(error).__name__}") from error
