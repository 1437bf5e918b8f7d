"""How a CSV file is written, as its first part shows: encoding, delimiter, decimal mark, and whether it has a header.

All of these can also be given by the user (`Spelling`). Where the file leaves something open, it is as in the file that
a model was fitted to.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

SAMPLE_BYTES = 2**18
# In this order: a file with ; between its cells may well have as many commas in every row.
DELIMITERS = ("\t", ";", "|", ",")
BLANKS = r"\s+"
GZIP, PARQUET, ZIP = b"\x1f\x8b", b"PAR1", b"PK\x03\x04"
BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
MARKED = {"utf-8-sig": ("utf-8",), "utf-16": ("utf-16-le", "utf-16-be")}  # what they are called without their mark

_NUMBER = re.compile(r"\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*")
# One group of three digits: its mark separates thousands, or is a decimal mark.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")
_DECIMALS = {  # numbers whose decimal mark can be told: thousands do not come after it, nor in other sizes than three
    mark: re.compile(
        rf"[+-]?(\d{{1,3}}({other}\d{{3}})+{re.escape(mark)}\d+|\d{{1,3}}({other}\d{{3}}){{2,}}|\d*{re.escape(mark)}\d+([eE][+-]?\d+)?)"
    )
    for mark, other in ((".", ","), (",", r"\."))
}


def has_decimals(cell: str, mark: str) -> bool:
    """Whether a cell is a number that can only be read with this decimal mark."""
    return bool(_DECIMALS[mark].fullmatch(cell)) and not THOUSANDS.fullmatch(cell)


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

    def to_json(self) -> dict[str, Any]:
        """As JSON-serialisable values."""
        return asdict(self)


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    encoding: str
    delimiter: str
    decimal: Literal[".", ","]
    header: bool
    columns: tuple[str, ...]
    decimal_is_open: bool = False  # no number has a mark: nothing is known about those of other files

    @property
    def spelling(self) -> Spelling:
        """The same as a user would say it; blanks between cells are always recognised."""
        delimiter = None if self.delimiter == BLANKS else self.delimiter
        return Spelling(self.encoding, delimiter, None if self.decimal_is_open else self.decimal, self.header)

    def __str__(self) -> str:
        between = {"\t": "tabs", BLANKS: "blanks"}.get(self.delimiter, repr(self.delimiter))
        comma = ", decimal commas" if self.decimal == "," else ""
        header = "" if self.header else ", no header: columns are named 1, 2, …"
        return f"CSV, {between} between cells{comma}{header}"


def sniff(
    path: Path,
    spelling: Spelling = Spelling(),  # noqa: B008  # frozen
    wanted: Collection[str] = (),
    usual: Spelling = Spelling(),  # noqa: B008
) -> Dialect:
    """The dialect of a CSV file; a first row with one of the wanted names is a header in any case.

    `usual` is taken where the file leaves it open.
    """
    text, complete, encoding = _sample(path, spelling.encoding, usual.encoding)
    delimiter, records = _records(text, complete, spelling.delimiter, usual.delimiter)
    if not records:
        raise ValueError("it is empty")
    decimal = _decimal(spelling.decimal, usual, delimiter, records)
    first = [cell.strip() for cell in records[0]]
    header = spelling.header
    if header is None:
        header = bool(set(first) & set(wanted)) or usual.header
    if header is None:  # a row of data has at least one number: the target
        header = not any(_NUMBER.fullmatch(cell) for cell in first)
    names = [cell or f"column {i}" for i, cell in enumerate(first, 1)] if header else _numbered(len(first))
    return Dialect(encoding, delimiter, decimal or ".", header, tuple(names), decimal_is_open=decimal is None)


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed, whatever its name says."""
    return starts_with(path, GZIP)


def starts_with(path: Path, magic: bytes) -> bool:
    """Whether the first bytes of a file are these."""
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _numbered(n: int) -> list[str]:
    return [str(i) for i in range(1, n + 1)]


def _sample(path: Path, encoding: str | None, usual: str | None) -> tuple[str, bool, str]:
    """The beginning of a file as text, whether that is all of it, and its encoding."""
    with gzip.open(path, "rb") if is_gzip(path) else open(path, "rb") as file:
        sample = file.read(SAMPLE_BYTES)
        complete = not file.read(1)
    if sample.startswith(ZIP):
        raise ValueError("it is a zip archive or an Excel workbook: save it as CSV")
    marked = next((name for mark, name in BYTE_ORDER_MARKS.items() if sample.startswith(mark)), None)
    if encoding is None:
        encoding = marked or _without_mark(sample, complete, usual)
    elif marked is not None and codecs.lookup(encoding).name in MARKED[marked]:
        encoding = marked  # else the mark would become a part of the first name
    text = codecs.getincrementaldecoder(encoding)().decode(sample, final=complete)
    if "\0" in text:
        raise ValueError("it is a binary file")
    return text, complete, encoding


def _without_mark(sample: bytes, complete: bool, usual: str | None) -> str:
    """UTF-8, unless the usual encoding is another one, which the sample is not proof against."""
    if usual is None or usual.startswith("utf"):
        return "utf-8"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=complete)
    except UnicodeDecodeError:
        return usual
    return usual if sample.isascii() else "utf-8"  # other encodings hardly ever look like UTF-8 by chance


def _records(text: str, complete: bool, delimiter: str | None, usual: str | None) -> tuple[str, list[list[str]]]:
    """The delimiter that gives most rows as many cells as the first one, and the rows."""
    candidates = [delimiter] if delimiter else [*([usual] if usual else []), *DELIMITERS]
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


def _decimal(
    said: str | None, usual: Spelling, delimiter: str, records: Sequence[Sequence[str]]
) -> Literal[".", ","] | None:
    """The decimal mark: as it is said, as numbers show it, as usual, or a guess; None if no number has a mark."""
    cells = [cell.strip() for record in records for cell in record if "," in cell or "." in cell]
    points, commas = (any(has_decimals(cell, mark) for cell in cells) for mark in (".", ","))
    if said is None and points != commas:
        return "," if commas else "."
    # Who now has commas between cells has changed more than that: numbers no longer have them as decimal marks.
    is_usual = delimiter != "," or usual.delimiter == ","
    known = said or (usual.decimal if is_usual else None)
    if known is not None:
        return "," if known == "," else "."
    if delimiter == "," or points:
        return "."
    # 1,234 may be a number with three decimals or have its thousands separated; 1.234 is always taken for the former.
    either = [cell for cell in cells if THOUSANDS.fullmatch(cell)]
    return None if not either else "," if all("," in cell for cell in either) else "."
