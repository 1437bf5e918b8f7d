"""What all tests share."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let Ctrl-C work: a shell that starts the tests in the background has told them to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
