"""Files of every dialect come out as the same table; what cannot be read is said in one line."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.tables.columns import Column
from nearexact.tables.dialect import BLANKS, Spelling, sniff
from nearexact.tables.reading import open_table, read

HEADER = ["name", "size", "price"]
ROWS = [["Köln", "1.5", "10"], ["a\nb", "2.25", "20"], ['say "x"', "-3.0", "30"]]


def written(path: Path, text: str, encoding: str = "utf-8", compressed: bool = False) -> Path:
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if compressed else data)
    return path


def as_csv(delimiter: str, decimal: str = ".", newline: str = "\n") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline)
    writer.writerow(HEADER)
    writer.writerows([name, size.replace(".", decimal), price] for name, size, price in ROWS)
    return text.getvalue()


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_every_dialect_gives_the_same_table(
    delimiter: str, encoding: str, newline: str, compressed: bool, tmp_path: Path
) -> None:
    path = written(tmp_path / "table.txt", as_csv(delimiter, newline=newline), encoding, compressed)
    file = open_table(path)
    assert file.columns == tuple(HEADER)
    assert read(file, HEADER).to_numpy().tolist() == ROWS


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8-sig", "utf-8"), ("utf-8-sig", "UTF8"), ("utf-16", "utf-16-le"), ("utf-8", "utf-8")]
)
def test_a_byte_order_mark_is_no_part_of_a_name(encoding: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", as_csv(","), encoding)
    file = open_table(path, Spelling(encoding=said))
    assert file.columns == tuple(HEADER)
    assert read(file, HEADER).to_numpy().tolist() == ROWS


def test_decimal_commas(tmp_path: Path) -> None:
    file = open_table(written(tmp_path / "t.csv", as_csv(";", decimal=",")))
    assert file.decimal == ","
    assert open_table(written(tmp_path / "u.csv", as_csv(";"))).decimal == "."
    mixed = open_table(written(tmp_path / "v.csv", "a;b\n1,5;2.5\n"))
    assert mixed.decimal == "."  # in doubt


@pytest.mark.parametrize(
    ("cells", "decimal"),
    [
        (["1.234,5", "2"], ","),
        (["1,234.5", "2"], "."),
        (["1.234.567", "2,5"], ","),
        (["1,234,567", "2.5"], "."),
        (["1,234", "2.5"], "."),
        (["1.234", "2,5"], ","),
        (["1,234", "5,678"], ","),  # in doubt; preparing the table says so
        (["1.234", "5.678"], "."),
    ],
)
def test_the_decimal_mark_where_thousands_are_separated(cells: list[str], decimal: str, tmp_path: Path) -> None:
    table = "a;b\n" + "".join(f"x;{cell}\n" for cell in cells)
    assert open_table(written(tmp_path / "t.csv", table)).decimal == decimal
    quoted = "a,b\n" + "".join(f'x,"{cell}"\n' for cell in cells)
    expected = "." if cells == ["1,234", "5,678"] else decimal  # commas between cells are not between digits too
    assert open_table(written(tmp_path / "q.csv", quoted)).decimal == expected


def test_what_a_file_leaves_open_is_as_usual(tmp_path: Path) -> None:
    usual = Spelling(encoding="latin-1", delimiter="~", decimal=",", header=False)
    plain = open_table(written(tmp_path / "t.csv", "a~1\nb~2\n"), usual=usual)
    assert plain.spelling == usual
    assert plain.columns == ("1", "2")
    named = open_table(written(tmp_path / "t.csv", "a~1.5\nKöln~2\n"), wanted={"a"}, usual=usual)
    assert named.spelling == Spelling("utf-8", "~", ".", True)  # which the file tells
    foreign = open_table(written(tmp_path / "t.csv", "a~1,5\nKöln~2\n", "latin-1"), usual=usual)
    assert (foreign.spelling, read(foreign, ["1"])["1"].tolist()) == (usual, ["a", "Köln"])
    said = open_table(tmp_path / "t.csv", Spelling(encoding="cp1252", header=True), usual=usual)
    assert (said.spelling.encoding, said.spelling.header) == ("cp1252", True)


@pytest.mark.parametrize(
    ("fitted", "new", "value"),
    [
        ("a;b\n1.234,5;1\n", "a;b\n1.234;3\n", 1234.0),
        ("a\tb\n1,234.5\t1\n", "a\tb\n1,234\t3\n", 1234.0),
        ("a;b\n0,5;1\n", "a;b\n1,234;3\n", 1.234),
        ("a;b\n0.5;1\n", "a;b\n1.234;3\n", 1.234),
        ("a;b\n1,234;1\n", "a;b\n1.234;3\n", 1234.0),  # the guess at the fit is what the model has learnt
        ("a;b\n7;1\n", "a;b\n1,234;3\n", 1.234),  # nothing is known from the fit: the guess is as it would be there
        ("a;b\n0,5;1\n", "a,b\n1.234,3\n", 1.234),  # commas between cells
        ('a,b\n"0,5",1\n', 'a,b\n"1.234",3\n', 1234.0),
    ],
)
def test_numbers_that_can_be_read_in_two_ways_are_read_as_at_the_fit(
    fitted: str, new: str, value: float, tmp_path: Path
) -> None:
    usual = open_table(written(tmp_path / "t.csv", fitted)).spelling
    file = open_table(written(tmp_path / "new.csv", new), wanted={"a", "b"}, usual=usual)
    assert Column("a", "number").values(read(file, ["a"])["a"], file.decimal).tolist() == [value]
    for mark in (",", "."):  # what is said comes first
        said = open_table(tmp_path / "new.csv", Spelling(decimal=mark), wanted={"a", "b"}, usual=usual)
        cells = read(said, ["a"])["a"]
        assert Column("a", "number").values(cells, said.decimal).tolist() == [1.234 if mark in cells[0] else 1234.0]


def test_columns_are_copied_as_they_are(tmp_path: Path) -> None:
    file = open_table(written(tmp_path / "t.csv", as_csv(";")))
    ((frame, copy),) = file.pieces(["size"], ["price", "name"])
    assert list(frame) == ["size"]
    assert copy.to_pydict() == {"price": ["10", "20", "30"], "name": [row[0] for row in ROWS]}
    typed = pd.DataFrame({"id": [1, 2], "kind": pd.Categorical(["a", "b"]), "x": [0.5, 1.5]})
    typed.to_parquet(tmp_path / "t.parquet")
    ((frame, copy),) = open_table(tmp_path / "t.parquet").pieces(["x"], ["kind", "id"])
    assert [str(kind) for kind in copy.schema.types] == [str(copy.schema.field("kind").type), "int64"]
    assert copy.to_pydict() == {"kind": ["a", "b"], "id": [1, 2]}


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8), delimiter=st.sampled_from(",;\t|"))
@settings(max_examples=60, deadline=None)
def test_pieces_are_what_the_csv_module_reads(
    rows: list[tuple[str, ...]], delimiter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([HEADER, *rows])
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(text.getvalue().encode())
    file = open_table(path, Spelling(delimiter=delimiter, header=True))
    pieces = [piece.frame for piece in file.pieces(["price", "name"], rows=2)]
    found = pd.concat(pieces, ignore_index=True)
    expected = [[row[2], row[0]] for row in csv.reader(io.StringIO(path.read_text(), newline=""), delimiter=delimiter)]
    assert max(map(len, pieces)) <= 2
    assert len(found) == len(expected) - 1
    for cells, wanted in zip(found.to_numpy().tolist(), expected[1:], strict=True):
        for cell, text_wanted in zip(cells, wanted, strict=True):
            if isinstance(cell, str):
                assert cell.splitlines() == text_wanted.splitlines()


@pytest.mark.parametrize(
    ("text", "header", "columns"),
    [
        ("a,b\n1,2\n", True, ("a", "b")),
        ("1,2\n3,4\n", False, ("1", "2")),
        ("x,2020-01-01,5\n", False, ("1", "2", "3")),
        ("2019,2020\n3,4\n", False, ("1", "2")),
        ("2019,price\n3,4\n", True, ("2019", "price")),  # the target is named
        (",price\n0,4\n", True, ("column 1", "price")),
        ("\n\na,b\n1,2\n", True, ("a", "b")),
    ],
)
def test_headers_are_told_from_data(text: str, header: bool, columns: tuple[str, ...], tmp_path: Path) -> None:
    dialect = sniff(written(tmp_path / "t.csv", text), wanted={"price"})
    assert (dialect.header, dialect.columns) == (header, columns)


def test_blanks_and_single_columns(tmp_path: Path) -> None:
    spaced = open_table(written(tmp_path / "a.txt", "x  y\n1   2\n 3 4\n"))
    assert read(spaced, ["x", "y"]).to_numpy().tolist() == [["1", "2"], ["3", "4"]]
    assert sniff(tmp_path / "a.txt").delimiter == BLANKS
    single = open_table(written(tmp_path / "b.txt", "x\n1,5\n2,5\n"))
    assert (single.decimal, read(single, ["x"])["x"].tolist()) == (",", ["1,5", "2,5"])


def test_a_sample_is_enough(tmp_path: Path) -> None:
    """The dialect comes from the beginning; a row that the sample cuts in two does not disturb."""
    path = written(tmp_path / "t.csv", "a;b\n" + '"x, y\n, z";1,5\n' * 40_000)
    file = open_table(path)
    assert (file.columns, file.decimal) == (("a", "b"), ",")
    assert sum(len(piece.frame) for piece in file.pieces(["b"])) == 40_000


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def test_parquet_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "f": pa.array([0.5, None, 2.0], pa.float32()),
            "m": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
            "b": [True, None, False],
            "d": [datetime.date(1970, 1, 2), None, datetime.date(2020, 1, 1)],
            "t": pa.array([86_400_000, None, 0], pa.timestamp("ms", tz="Europe/Berlin")),
            "s": ["x", None, "y"],
            "k": pa.array(["x", None, "y"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "t.data")  # what a file is does not depend on its name
    frame = read(open_table(tmp_path / "t.data"), table.column_names)
    assert frame.isna().to_numpy().tolist() == [[False] * 8, [True] * 8, [False] * 8]
    assert frame["i"].dropna().tolist() == [1.0, 3.0]
    assert frame["m"].dropna().tolist() == [1.5, 2.25]
    assert frame["b"].dropna().tolist() == [True, False]
    assert frame["d"].dropna().astype(str).tolist() == ["1970-01-02 00:00:00+00:00", "2020-01-01 00:00:00+00:00"]
    assert frame["t"].dropna().astype(str).tolist() == ["1970-01-02 00:00:00+00:00", "1970-01-01 00:00:00+00:00"]
    assert frame["k"].dropna().tolist() == ["x", "y"]


def test_parquet_in_pieces_without_the_index_of_pandas(tmp_path: Path) -> None:
    pd.DataFrame({"a": range(10), "b": list("abcdefghij")}, index=range(5, 15)).to_parquet(tmp_path / "t.parquet")
    file = open_table(tmp_path / "t.parquet")
    assert file.columns == ("a", "b")
    pieces = [piece.frame for piece in file.pieces(["b", "a"], rows=4)]
    assert [len(piece) for piece in pieces] == [4, 4, 2]
    assert pd.concat(pieces)["b"].tolist() == list("abcdefghij")


def test_files_without_rows(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.0]})[:0].to_parquet(tmp_path / "t.parquet")
    for path in (tmp_path / "t.parquet", written(tmp_path / "t.csv", "a\n")):
        (piece,) = open_table(path).pieces(["a"])
        assert piece.frame.shape == (0, 1)


# ---- what cannot be read ---------------------------------------------------------------------------------------------


def read_all(path: Path) -> pd.DataFrame:
    file = open_table(path)
    return read(file, file.columns)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (b"a,b\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
        (b"a,b\n1,2,3\n4,5,6\n", "its rows have more cells than its header"),
        (b'a,b\n1,"2\n3,4\n', "EOF inside string"),
        (b"a,a\n1,2\n", "more than one column of the name 'a'"),
        (b"a,b\n1,K\xf6ln\n", r"is not UTF-8 text \(byte 0xf6\): pass its encoding, such as --encoding latin-1"),
        (b"a,b\n1,\0\n", "it is a binary file"),
        (b"PK\x03\x04 and so on", "a zip archive or an Excel workbook: save it as CSV"),
        (b"PAR1 and so on", "cannot be read as a table"),
        (gzip.compress(b"a,b\n1,2\n" * 1000, mtime=0)[:-20], "cannot be read as a table"),
        (b"\x1f\x8b and so on", "cannot be read as a table"),
    ],
)
def test_what_cannot_be_read_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_all(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_late_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n" + b"1,2\n" * 100_000 + b"1,\xf6\n")
    file = open_table(path)
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read(file, ["a", "b"])
    latin = open_table(path, Spelling(encoding="latin-1"))
    assert read(latin, ["b"])["b"].iloc[-1] == "ö"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": "klingon"}, "there is no encoding 'klingon'"),
        ({"delimiter": "--"}, "a delimiter must be one character"),
        ({"decimal": "x"}, "a decimal mark must be"),
    ],
)
def test_wrong_spellings_are_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spelling(**settings)  # type: ignore[arg-type]


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path):
        with pytest.raises(ValueError, match="there is no file"):
            open_table(path)


def test_types_that_are_no_columns_of_numbers_or_names(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "nested": [[1, 2]]}), tmp_path / "t.parquet")
    file = open_table(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"column 'nested' holds list<.*leave it out"):
        read(file, file.columns)
    assert len(read(file, ["a"])) == 1
