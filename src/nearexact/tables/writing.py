"""Write tables piece by piece: CSV, gzipped or not, and Parquet. The file appears only once it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from nearexact.files import check_output, replacing

SUFFIXES = (".parquet", ".csv", ".csv.gz")


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """A function that appends a table with this schema to the file."""
    check_output(path, SUFFIXES)
    with replacing(path) as temporary, ExitStack() as stack:
        writer: pq.ParquetWriter | pyarrow.csv.CSVWriter
        if path.name.endswith(".parquet"):
            writer = stack.enter_context(pq.ParquetWriter(temporary, schema))
        else:
            sink = stack.enter_context(pa.OSFile(str(temporary), "wb"))
            if path.name.endswith(".gz"):
                sink = stack.enter_context(pa.CompressedOutputStream(sink, "gzip"))
            writer = stack.enter_context(pyarrow.csv.CSVWriter(sink, schema))
        yield writer.write_table
