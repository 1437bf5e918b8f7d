"""Messages between the process of a run and the sweep that watches it: JSON, followed by arrays of numbers.

Not pickles: a method can write anything into its end of the channel, and reading it must stay harmless.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import numpy as np

from nearexact.bench.json_values import as_json_value, parse_json
from nearexact.typing import FloatArray

SIZES = struct.Struct("!II")  # bytes of the JSON and of the arrays, ahead of each message
LONGEST_JSON = 2**20  # bytes
RECEIVED_AT_ONCE = 2**20  # bytes

Message = tuple[dict[str, Any], FloatArray]


class Channel:
    """One end of the channel. A message that is larger than `longest_array` numbers is refused."""

    def __init__(self, connection: socket.socket, longest_array: int = 0) -> None:
        self._connection, self._longest_array = connection, longest_array
        self._received = bytearray()

    def send(self, message: dict[str, Any], numbers: FloatArray | None = None, timeout: float | None = None) -> None:
        """Send a message; ValueError if it is too long, OSError if the other end does not take it in time."""
        text = json.dumps(message, default=as_json_value).encode()
        if len(text) > LONGEST_JSON:
            raise ValueError(f"what is reported must take at most {LONGEST_JSON} bytes as JSON, got {len(text)}")
        content = b"" if numbers is None else np.ascontiguousarray(numbers, dtype=np.float64).tobytes()
        self._connection.settimeout(timeout)
        self._connection.sendall(SIZES.pack(len(text), len(content)) + text + content)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, or None if only a part of it has come; waits at most once.

        TimeoutError if nothing came, EOFError if the other end is closed, ValueError if what came is not a message.
        """
        message = self._complete_message()
        if message is not None:
            return message
        self._connection.settimeout(timeout)
        try:
            received = self._connection.recv(RECEIVED_AT_ONCE)
        except BlockingIOError as error:  # Python's name for a timeout if it is 0
            raise TimeoutError from error
        except ConnectionError as error:
            raise EOFError from error
        if not received:
            raise EOFError
        self._received += received
        return self._complete_message()

    def close(self) -> None:
        """Give up this end."""
        self._connection.close()

    def _complete_message(self) -> Message | None:
        if len(self._received) < SIZES.size:
            return None
        json_size, array_size = SIZES.unpack_from(self._received)
        if json_size > LONGEST_JSON or array_size > 8 * self._longest_array or array_size % 8:
            raise ValueError(f"a message of {json_size} and {array_size} bytes")
        end = SIZES.size + json_size + array_size
        if len(self._received) < end:
            return None
        content, self._received = bytes(self._received[SIZES.size : end]), self._received[end:]
        message = parse_json(content[:json_size].decode())
        if not isinstance(message, dict):
            raise ValueError(f"a message that is a {type(message).__name__}")
        return message, np.frombuffer(content[json_size:])
