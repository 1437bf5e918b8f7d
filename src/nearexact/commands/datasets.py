"""`nearexact datasets`: the data sets of the benchmark."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table


def register(commands: Any) -> None:
    """Add the command to the parser of `nearexact`."""
    _add(commands.add_parser("datasets", help="data sets of the benchmark"))


def _add(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("list", help="all data sets").set_defaults(command=_list)
    fetch = commands.add_parser("fetch", help="download data sets")
    fetch.add_argument("names", nargs="*", help="names, or paper for its twelve; all but the four large by default")
    fetch.set_defaults(command=_fetch)
    info = commands.add_parser("info", help="about one data set")
    info.add_argument("name")
    info.set_defaults(command=_info)


def _list(_: argparse.Namespace) -> int:
    from nearexact.bench import datasets

    table = Table("name", "rows", "inputs", "here", "what", box=None)
    for dataset in datasets.REGISTRY.values():
        here = "yes" if all(datasets.location(file) for file in dataset.files) else "no"
        table.add_row(dataset.name, str(dataset.rows), str(dataset.inputs), here, dataset.description)
    Console().print(table)
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from nearexact.bench import datasets

    for dataset in [datasets.find(name) for name in datasets.expand(options.names or datasets.MODEST)]:
        for file in dataset.files:
            print(datasets.fetch(file, progress=True))
    return 0


def _info(options: argparse.Namespace) -> int:
    from nearexact.bench import datasets
    from nearexact.bench.data_cards import CARDS

    dataset = datasets.find(options.name)
    n_train = int(datasets.TRAINING_SHARE * dataset.rows)
    print(f"{dataset.name}: {dataset.description}")
    print(f"{dataset.rows} rows, {dataset.inputs} inputs; {n_train} rows to train, {dataset.rows - n_train} to test")
    card = CARDS.get(dataset.name)  # tables of the user's own have none
    if card is not None:
        for label, value in (("target", card.target), ("source", card.source), ("licence", card.licence)):
            print(f"{label}: {value}")
        print(f"known defects: {card.defects}")
    for file in dataset.files:
        checksum = datasets.known_checksum(file) or "is not known: it is pinned when the file is first used"
        print(f"{file.name}\n  from {file.url}\n  sha256 {checksum}\n  here: {datasets.location(file) or 'no'}")
    return 0
