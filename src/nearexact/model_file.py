"""The bytes of a model file: a safetensors file with one JSON text in its header, and a checksum of everything.

The checksum stands at the same place in every file, so that it can be checked before anything else is read. It is
that of the file with zeros in the checksum's own place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from nearexact.typing import FloatArray

HEADER = "nearexact"  # the header's entry that holds the text

LENGTH_BYTES = 8  # at the beginning of a file: the length of its header
CHECKSUM_ENTRY = b'{"__metadata__":{"sha256":"'  # the beginning of a header
CHECKSUM_AT = LENGTH_BYTES + len(CHECKSUM_ENTRY)
NO_CHECKSUM = b"0" * 64

# A header that is larger than any model needs is refused before time and memory go into its JSON. Each input has a
# name, kernel parameters in every stage of the history and, from a table, a description of its column.
HEADER_BYTES, HEADER_BYTES_PER_INPUT = 2**20, 2**12
ARRAY_BYTES_PER_INPUT = 24  # at least: shift, scale, and one inducing point
INPUTS = re.compile(rb'"shift_X":\{"dtype":"F64","shape":\[(\d{1,9})\]')
CHUNK_BYTES = 2**22


def write_file(file: BinaryIO, text: str, arrays: Mapping[str, FloatArray]) -> None:
    """Write the text and the arrays, with the checksum of all of it."""
    entries: dict[str, object] = {"__metadata__": {"sha256": NO_CHECKSUM.decode(), HEADER: text}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        entries[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that the arrays are aligned
    _check_header_size(len(header), len(arrays["shift_X"]))
    beginning = len(header).to_bytes(LENGTH_BYTES, "little") + header
    contents = [np.ascontiguousarray(array, dtype="<f8").reshape(-1).view(np.uint8).data for array in arrays.values()]
    checksum = hashlib.sha256(beginning)
    for content in contents:
        checksum.update(content)
    file.write(_with_checksum(beginning, checksum.hexdigest().encode()))
    for content in contents:
        file.write(content)


def check_bytes(file: BinaryIO) -> bool:
    """Whether the file has a checksum; a ValueError if that is wrong, or if the header is larger than any model's."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(LENGTH_BYTES)
    length = int.from_bytes(start, "little")
    if size < LENGTH_BYTES + length:
        raise ValueError("it is shorter than it should be")
    most_inputs = (size - LENGTH_BYTES - length) // ARRAY_BYTES_PER_INPUT
    _check_header_size(length, most_inputs)
    beginning = start + file.read(length)
    match = INPUTS.search(beginning)
    _check_header_size(length, min(int(match[1]), most_inputs) if match else 0)
    if not beginning.startswith(CHECKSUM_ENTRY, LENGTH_BYTES):
        return False
    checksum = hashlib.sha256(_with_checksum(beginning, NO_CHECKSUM))
    while chunk := file.read(CHUNK_BYTES):
        checksum.update(chunk)
    if beginning[CHECKSUM_AT : CHECKSUM_AT + len(NO_CHECKSUM)] != checksum.hexdigest().encode():
        raise ValueError("its content does not have the checksum that it had when it was written")
    return True


def _with_checksum(beginning: bytes, checksum: bytes) -> bytes:
    return beginning[:CHECKSUM_AT] + checksum + beginning[CHECKSUM_AT + len(checksum) :]


def _check_header_size(length: int, inputs: int) -> None:
    most = HEADER_BYTES + HEADER_BYTES_PER_INPUT * inputs
    if length > most:
        raise ValueError(f"its header has {length} bytes; one with {inputs} inputs may have {most}")
