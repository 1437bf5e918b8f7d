"""The version of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Of the installed package; "unknown" where only its source is there."""
    try:
        return version("nearexact")
    except PackageNotFoundError:
        return "unknown"
