"""`nearexact bench fidelity --exchange A,B`: two methods with each other's hyperparameters."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table


def exchange(options: argparse.Namespace, methods: list[str]) -> int:
    """Compute the exchange, show it, and keep it in the results folder."""
    from nearexact.bench import exchange as exchanging

    if len(methods) != 2 or methods[0] == methods[1]:
        raise ValueError(f"--exchange takes two methods with a comma between, got {options.exchange!r}")
    rows = []
    table = Table("data set", "seed", "method", "with θ of", "NLPD", "RMSE", "CRPS", "exact LML", box=None)
    for one in exchanging.exchange(options.results, *methods, memory_limit=options.memory_limit):
        if isinstance(one, str):
            print(f"not exchanged: {one}", file=sys.stderr)
            continue
        rows.append(one)
        numbers = [f"{value:.4g}" for value in (one.nlpd, one.rmse, one.crps, one.exact_lml)]
        table.add_row(one.dataset, str(one.seed), one.method, one.hyperparameters_of, *numbers)
    if not rows:
        raise ValueError(f"nothing in {options.results} could be exchanged")
    Console().print(table)
    print(exchanging.write(options.results, rows))
    return 0
