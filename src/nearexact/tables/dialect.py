"""How a CSV file is written, as its first part shows: encoding, delimiter, decimal mark, and whether it has a header.

All of these can also be given by the user (`Spelling`).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SAMPLE_BYTES = 2**18
# In this order: a file with ; between its cells may well have as many commas in every row.
DELIMITERS = ("\t", ";", "|", ",")
BLANKS = r"\s+"
GZIP, PARQUET, ZIP = b"\x1f\x8b", b"PAR1", b"PK\x03\x04"
BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

_NUMBER = re.compile(r"\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*")
_WITH_POINT, _WITH_COMMA = (re.compile(rf"\s*[+-]?\d*{mark}\d+([eE][+-]?\d+)?\s*") for mark in (r"\.", ","))


@dataclass(frozen=True)
class Spelling:
    """What the user says about a CSV file; None is to be recognised from the file."""

    encoding: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except (LookupError, ValueError) as error:
                raise ValueError(f"there is no encoding {self.encoding!r}; latin-1 is one") from error
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ValueError(f'a delimiter must be one character such as ";", got {self.delimiter!r}')
        if self.decimal not in (None, ".", ","):
            raise ValueError(f'a decimal mark must be "." or ",", got {self.decimal!r}')


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    encoding: str
    delimiter: str
    decimal: Literal[".", ","]
    header: bool
    columns: tuple[str, ...]

    def __str__(self) -> str:
        between = {"\t": "tabs", BLANKS: "blanks"}.get(self.delimiter, repr(self.delimiter))
        comma = ", decimal commas" if self.decimal == "," else ""
        header = "" if self.header else ", no header: columns are named 1, 2, …"
        return f"CSV, {between} between cells{comma}{header}"


def sniff(path: Path, spelling: Spelling = Spelling(), wanted: Collection[str] = ()) -> Dialect:  # noqa: B008  # frozen
    """The dialect of a CSV file; a first row with one of the wanted names is a header in any case."""
    text, complete, encoding = _sample(path, spelling.encoding)
    delimiter, records = _records(text, complete, spelling.delimiter)
    if not records:
        raise ValueError("it is empty")
    decimal = spelling.decimal or _decimal(delimiter, records)
    first = [cell.strip() for cell in records[0]]
    header = spelling.header
    if header is None:  # a row of data has at least one number: the target
        header = bool(set(first) & set(wanted)) or not any(_NUMBER.fullmatch(cell) for cell in first)
    names = [cell or f"column {i}" for i, cell in enumerate(first, 1)] if header else _numbered(len(first))
    return Dialect(encoding, delimiter, "," if decimal == "," else ".", header, tuple(names))


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed, whatever its name says."""
    return starts_with(path, GZIP)


def starts_with(path: Path, magic: bytes) -> bool:
    """Whether the first bytes of a file are these."""
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _numbered(n: int) -> list[str]:
    return [str(i) for i in range(1, n + 1)]


def _sample(path: Path, encoding: str | None) -> tuple[str, bool, str]:
    """The beginning of a file as text, whether that is all of it, and its encoding."""
    with gzip.open(path, "rb") if is_gzip(path) else open(path, "rb") as file:
        sample = file.read(SAMPLE_BYTES)
        complete = not file.read(1)
    if sample.startswith(ZIP):
        raise ValueError("it is a zip archive or an Excel workbook: save it as CSV")
    if encoding is None:
        marked = (name for mark, name in BYTE_ORDER_MARKS.items() if sample.startswith(mark))
        encoding = next(marked, "utf-8")
    text = codecs.getincrementaldecoder(encoding)().decode(sample, final=complete)
    if "\0" in text:
        raise ValueError("it is a binary file")
    return text, complete, encoding


def _records(text: str, complete: bool, delimiter: str | None) -> tuple[str, list[list[str]]]:
    """The delimiter that gives most rows as many cells as the first one, and the rows."""
    candidates = [delimiter] if delimiter else list(DELIMITERS)
    parsed = {mark: _parse(text, complete, mark) for mark in candidates}
    agreement = {mark: _agreement(records) for mark, records in parsed.items() if records and len(records[0]) > 1}
    if agreement:
        best = max(agreement, key=lambda mark: agreement[mark])  # the first of equals
        return best, parsed[best]
    if delimiter:
        return delimiter, parsed[delimiter]
    by_blanks = [line.split() for line in _lines(text, complete)]
    if by_blanks and len(by_blanks[0]) > 1 and _agreement(by_blanks) == 1.0:
        return BLANKS, by_blanks
    only = ";" if any("," in line for line in _lines(text, complete)) else ","  # one column, of decimal commas perhaps
    return only, _parse(text, complete, only)


def _parse(text: str, complete: bool, delimiter: str) -> list[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    records: list[list[str]] = []
    with suppress(csv.Error):  # such as a quote that is never closed, which reading reports
        records.extend(record for record in reader if len(record) > 1 or any(cell.strip() for cell in record))
    return records if complete or len(records) < 2 else records[:-1]


def _lines(text: str, complete: bool) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if complete or len(lines) < 2 else lines[:-1]


def _agreement(records: Sequence[Sequence[str]]) -> float:
    return sum(len(record) == len(records[0]) for record in records) / len(records)


def _decimal(delimiter: str, records: Sequence[Sequence[str]]) -> str:
    """A comma only where no number has a point."""
    if delimiter == ",":
        return "."
    cells = [cell for record in records for cell in record]
    commas = any(_WITH_COMMA.fullmatch(cell) for cell in cells)
    return "," if commas and not any(_WITH_POINT.fullmatch(cell) for cell in cells) else "."
