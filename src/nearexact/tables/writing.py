"""Tables into files, piece by piece: CSV, gzipped or not, and Parquet. The file is there only once it is complete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

SUFFIXES = (".parquet", ".csv", ".csv.gz")


def check_output(path: str | os.PathLike[str], suffixes: tuple[str, ...] = ()) -> Path:
    """A path that can be written to, before hours go into what is to be written."""
    path = Path(path)
    if suffixes and not path.name.endswith(suffixes):
        raise ValueError(f"the output must be a {', '.join(suffixes[:-1])} or {suffixes[-1]} file, got {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"the output must be a file, but {str(path)!r} is a folder")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"there is no folder {str(path.parent)!r} to write {path.name!r} to")
    return path


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Another path to write to; what is there at the end takes its place at this one, unless something went wrong."""
    target = path.resolve()  # what a link points to is replaced, not the link
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """A function that appends a table with this schema to the file."""
    check_output(path, SUFFIXES)
    with completed(path) as temporary, ExitStack() as stack:
        writer: pq.ParquetWriter | pyarrow.csv.CSVWriter
        if path.name.endswith(".parquet"):
            writer = stack.enter_context(pq.ParquetWriter(temporary, schema))
        else:
            sink = stack.enter_context(pa.OSFile(str(temporary), "wb"))
            if path.name.endswith(".gz"):
                sink = stack.enter_context(pa.CompressedOutputStream(sink, "gzip"))
            writer = stack.enter_context(pyarrow.csv.CSVWriter(sink, schema))
        yield writer.write_table
