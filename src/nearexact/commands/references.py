"""`nearexact bench freeze` and `nearexact bench verify`: the best known losses in a file, and a folder next to them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def add(commands: Any) -> None:
    """Add both to the commands of `nearexact bench`."""
    freeze = commands.add_parser("freeze", help="write the best losses of results folders to a file of references")
    freeze.add_argument("results", type=Path, nargs="*", help="results folders")
    freeze.add_argument("-o", "--output", type=Path, required=True, help="a .json file; what it has already is kept")
    freeze.add_argument("--published", action="store_true", help="with the paper's own results, which are means")
    freeze.set_defaults(command=_freeze)

    verify = commands.add_parser("verify", help="compare a results folder with the best known losses")
    verify.add_argument("results", type=Path)
    verify.add_argument("--references", type=Path, help="a file of references; those of this package by default")
    verify.set_defaults(command=_verify)


def _freeze(options: argparse.Namespace) -> int:
    from nearexact.bench.analysis import references, results
    from nearexact.files import check_output

    output = check_output(options.output, (".json",))
    found = references.load(output) if output.exists() else []
    found += references.from_paper() if options.published else []
    for folder in options.results:
        found += references.from_results(results.read(folder))
    if not found:
        raise ValueError("there is nothing to freeze: give results folders, or --published")
    best = references.best_of(found)
    references.write(output, best)
    print(f"{len(best)} references: {output}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from nearexact.bench.analysis import references, results
    from nearexact.bench.analysis.losses import METRICS
    from nearexact.bench.report.table_format import significant

    labels = {metric.name: metric.label for metric in METRICS}
    compared = references.verify(results.read(options.results), references.load(options.references))
    if compared.empty:
        raise ValueError(f"no reference is of a data set and split in {options.results}")
    table = Table(box=None)
    for heading in ("data set", "split", "metric", "reference", "by", "here", "by", "difference", ""):
        table.add_column(heading, overflow="fold")
    for row in compared.itertuples():
        numbers = (significant(row.reference), row.by, significant(row.here), row.method)
        table.add_row(row.dataset, row.split, labels[row.metric], *numbers, f"{row.difference:+.1f} %", row.verdict)
    Console().print(table)
    counts = compared["verdict"].value_counts()
    words = {"same": "reached", "better": "beaten", "worse": "not reached"}
    print(", ".join(f"{counts.get(name, 0)} {word}" for name, word in words.items()))
    print(
        f"Reached is within {100 * references.TOLERANCE:g} % of the way from the reference to the constant predictor."
    )
    return 1 if "worse" in counts else 0
