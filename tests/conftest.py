"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_configure() -> None:
    """Let Ctrl-C work also where a shell started the tests in the background, which makes them ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs files of data sets that are not here, and name them: no test downloads anything."""
    names = [name for mark in item.iter_markers("data") for name in mark.args]
    if not names:
        return
    from nearexact.bench import datasets

    missing = [file.name for name in names for file in datasets.find(name).files if datasets.location(file) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: set {datasets.DATA_FOLDER} to a folder with it, or `datasets fetch`")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser without network."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"needs a browser: there is no {CHROMIUM}, which Debian's chromium installs")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=SWITCHES)
        yield chromium
        chromium.close()
