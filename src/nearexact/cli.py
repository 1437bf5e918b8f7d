"""The command `nearexact`. Errors are one line on standard error and status 2; Ctrl-C is 130, a closed pipe 141."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from nearexact.commands import bench, datasets, model, paper
from nearexact.version import installed_version

WRONG_USE, CTRL_C, CLOSED_PIPE = 2, 130, 141  # the latter two as shells count signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be dealt with
    except BrokenPipeError:
        return _reader_is_gone()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich ends the program by itself
            return CLOSED_PIPE
        raise


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"nearexact: {error}", file=sys.stderr)
        return WRONG_USE
    except ModuleNotFoundError as error:
        extra = getattr(options, "extra", "bench")
        print(f'nearexact: {error.name} is missing: pip install "nearexact[{extra}]"', file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        print("nearexact: stopped; the same command continues", file=sys.stderr)
        return CTRL_C
    return status


def _reader_is_gone() -> int:
    """After `nearexact … | head` nothing is left to say, and nothing to write to when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nearexact", description="Near-exact Gaussian processes, and their benchmark."
    )
    parser.add_argument("--version", action="version", version=f"nearexact {installed_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (model, bench, datasets, paper):
        module.register(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
