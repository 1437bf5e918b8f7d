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
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

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


class Piece(NamedTuple):
    """Some rows: columns to compute with, and columns as they stand in the table."""

    frame: pd.DataFrame
    copy: pa.Table


class TableFile(Protocol):
    """A file with named columns, or a data frame."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""

    @property
    def categorical(self) -> frozenset[str]:
        """The names of columns that are categories by their type, also where numbers name these."""

    @property
    def decimal(self) -> str:
        """The decimal mark of numbers that are text."""

    @property
    def spelling(self) -> Spelling:
        """How it is written; of a file that is not text nothing is to be said."""

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """The types of these columns where they are only copied."""

    def pieces(self, columns: Sequence[str], copied: Sequence[str] = (), rows: int = ROWS_AT_ONCE) -> Iterator[Piece]:
        """These columns in this order, so many rows at a time; at least one piece, which may have no rows."""


def open_table(
    source: Source,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    wanted: Collection[str] = (),
    usual: Spelling = Spelling(),  # noqa: B008
) -> TableFile:
    """A data frame, or a CSV or Parquet file, recognised by its content.

    A first row with one of the wanted names is a header. `spelling` is what the user says about a CSV file, `usual`
    what is taken where the file leaves something open.
    """
    file = FrameTable(source) if isinstance(source, pd.DataFrame) else _open_file(Path(source), spelling, wanted, usual)
    twice = sorted(name for name, count in Counter(file.columns).items() if count > 1)
    if twice:
        raise ValueError(f"{file.name} has more than one column of the name {', '.join(map(repr, twice))}")
    return file


def _open_file(path: Path, spelling: Spelling, wanted: Collection[str], usual: Spelling) -> TableFile:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    with _explained(str(path)):
        if starts_with(path, PARQUET):
            schema = pq.read_schema(path)
            columns = tuple(name for name in schema.names if not name.startswith("__index_level_"))
            return ParquetTable(path, columns, _categorical(schema))
        return CsvTable(path, sniff(path, spelling, wanted, usual))


def _categorical(schema: pa.Schema) -> frozenset[str]:
    """Columns that were categories when the file was written: Parquet itself has these only for text."""
    by_pandas = (schema.pandas_metadata or {}).get("columns", [])
    names = {field.name for field in schema if pa.types.is_dictionary(field.type)}
    return frozenset(names | {str(c["field_name"]) for c in by_pandas if c.get("pandas_type") == "categorical"})


def rows_at_once(columns: int) -> int:
    """Rows of a piece: fewer where there are many columns, so that all pieces need about the same memory."""
    return min(max(CELLS_AT_ONCE // max(columns, 1), FEWEST_ROWS_AT_ONCE), ROWS_AT_ONCE)


def read(file: TableFile, columns: Sequence[str]) -> pd.DataFrame:
    """The whole of these columns."""
    return pd.concat([piece.frame for piece in file.pieces(columns)], ignore_index=True)


@dataclass(frozen=True)
class CsvTable:
    """Cells are text; missing ones are NaN."""

    path: Path
    dialect: Dialect
    categorical: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.dialect.columns

    @property
    def decimal(self) -> str:
        return self.dialect.decimal

    @property
    def spelling(self) -> Spelling:
        return self.dialect.spelling

    def __str__(self) -> str:
        return str(self.dialect)

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in columns])

    def pieces(self, columns: Sequence[str], copied: Sequence[str] = (), rows: int = ROWS_AT_ONCE) -> Iterator[Piece]:
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
                yield self._piece(piece, columns, copied)
            if empty:
                nothing = pd.DataFrame({name: pd.Series(dtype="str") for name in self.columns})
                yield self._piece(nothing, columns, copied)

    def _piece(self, frame: pd.DataFrame, columns: Sequence[str], copied: Sequence[str]) -> Piece:
        copy = pa.Table.from_pandas(frame[list(copied)], self.schema(copied), preserve_index=False)
        return Piece(frame[list(columns)], copy)


@dataclass(frozen=True)
class ParquetTable:
    """Columns are float64, boolean with missing values, dates in UTC, or text."""

    path: Path
    columns: tuple[str, ...]
    categorical: frozenset[str]

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def decimal(self) -> str:
        return "."

    @property
    def spelling(self) -> Spelling:
        return Spelling()

    def __str__(self) -> str:
        return "Parquet"

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        with _explained(self.name):
            kinds = pq.read_schema(self.path)
        return _copied_schema(columns, [kinds.field(name).type for name in columns])

    def pieces(self, columns: Sequence[str], copied: Sequence[str] = (), rows: int = ROWS_AT_ONCE) -> Iterator[Piece]:
        empty, schema, needed = True, self.schema(copied), list(dict.fromkeys([*columns, *copied]))
        with _explained(self.name):
            file = pq.ParquetFile(self.path, pre_buffer=False)  # it would hold whole row groups
        with file:
            rows = min(rows, rows_at_once(len(needed)))
            batches = file.iter_batches(batch_size=rows, columns=needed, use_threads=False)
            while True:
                with _explained(self.name):
                    batch = next(batches, None)
                    some = None if batch is None else _piece(pa.Table.from_batches([batch]), columns, schema)
                if some is None:
                    break
                empty = False
                yield some
            if empty:
                with _explained(self.name):
                    some = _piece(file.schema_arrow.empty_table(), columns, schema)
                yield some


@dataclass(frozen=True, eq=False)
class FrameTable:
    """A data frame, whose columns become what those of a Parquet file are."""

    frame: pd.DataFrame
    name: ClassVar[str] = "the data frame"
    decimal: ClassVar[str] = "."
    spelling: ClassVar[Spelling] = Spelling()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(map(str, self.frame.columns))

    @property
    def categorical(self) -> frozenset[str]:
        kinds = zip(self.columns, self.frame.dtypes, strict=True)
        return frozenset(name for name, kind in kinds if isinstance(kind, pd.CategoricalDtype))

    def __str__(self) -> str:
        return "data frame"

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        return _copied_schema(columns, [self._column(name).type for name in columns])

    def pieces(self, columns: Sequence[str], copied: Sequence[str] = (), rows: int = ROWS_AT_ONCE) -> Iterator[Piece]:
        whole = pa.table({name: self._column(name) for name in dict.fromkeys([*columns, *copied])})
        schema = self.schema(copied)
        for first in range(0, max(len(self.frame), 1), rows):
            yield _piece(whole.slice(first, rows), columns, schema)

    def _column(self, name: str) -> pa.ChunkedArray:
        cells = self.frame.iloc[:, self.columns.index(name)]
        try:
            return pa.chunked_array([pa.array(cells, from_pandas=True)])
        except (pa.ArrowException, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"column {name!r} of the data frame holds cells of different kinds: {reason}") from error


def _copied_schema(columns: Sequence[str], kinds: Sequence[pa.DataType]) -> pa.Schema:
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
    return pa.schema(list(zip(columns, plain, strict=True)))


def _piece(table: pa.Table, columns: Sequence[str], copied: pa.Schema) -> Piece:
    frame = _frame(table, columns)
    try:
        return Piece(frame, table.select(copied.names).cast(copied))
    except pa.ArrowException as error:
        raise ValueError(f"columns to keep cannot be copied: {' '.join(str(error).split())}") from error


def _frame(table: pa.Table, columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({name: _series(name, table.column(name)) for name in columns}, index=range(len(table)))


def _series(name: str, column: pa.ChunkedArray) -> pd.Series:
    kind = column.type
    is_a = pa.types
    if is_a.is_dictionary(kind):
        try:
            return _series(name, column.cast(kind.value_type))
        except pa.ArrowException:  # values that cannot be taken out are none of those that can be used
            raise _unusable(name, kind.value_type) from None
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
    raise _unusable(name, kind)


def _unusable(name: str, kind: pa.DataType) -> ValueError:
    return ValueError(f"column {name!r} holds {kind}: numbers, booleans, dates and text can be used; leave it out")


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
            " such as --encoding latin-1"
        ) from error
    except pd.errors.ParserWarning as error:
        raise ValueError(f"{name} cannot be read as a table: its rows have more cells than its header") from error
    except UNREADABLE as error:
        reason = " ".join(str(error).replace("Error tokenizing data. C error: ", "").split())
        raise ValueError(f"{name} cannot be read as a table: {reason or type(error).__name__}") from error
