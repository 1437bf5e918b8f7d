"""Does the kernel that `nearexact fit` chooses predict no worse than `se`? Both under equal time limits.

    NEAREXACT_DATA=<folder> python benchmarks/kernel_choice.py [--names elevators,kin8nm] [--all-kernels kin8nm]
        [--tables <folder>] [--rows 2000] [--time-limit 60] [--output benchmarks/results/kernel_choice.json]

The training rows are the first 2000 of a split's training part, the test rows its test part. NLPD and RMSE are those of
standardised targets. `--all-kernels` also fits every kernel to the data sets of these names. `--tables` names a folder
of gzipped CSV files without header, the target in the last column. Results are written after each data set, and those
that are there already are not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from nearexact import GPRegressor
from nearexact.bench.datasets import load_split, split
from nearexact.bench.metrics import nlpd, rmse
from nearexact.gp.starts import Start
from nearexact.kernels import Kernel
from nearexact.tables.kernel_choice import SHARE_OF_TIME, Choice, choose, named
from nearexact.tables.kernel_names import COMPARED, SIMPLEST
from nearexact.typing import FloatArray

NAMES = ("elevators", "kin8nm", "bike", "pol", "power", "protein", "skillcraft", "naval")
RESULTS = Path(__file__).with_name("results") / "kernel_choice.json"
NO_WORSE = 0.01  # nats


@dataclass(frozen=True, eq=False)
class Data:
    """Standardised training and test rows."""

    X: FloatArray
    y: FloatArray
    X_test: FloatArray
    y_test: FloatArray


@dataclass(frozen=True)
class Scores:
    """How a kernel does on test rows."""

    kernel: str
    method: str
    verdict: str
    nlpd: float
    rmse: float
    seconds: float


def problems(names: list[str], rows: int, tables: Path | None) -> Iterator[tuple[str, Data]]:
    """Data sets, and the tables of a folder."""
    for name in names:
        part = load_split(name, seed=0)
        yield name, Data(part.X_train[:rows], part.y_train[:rows], part.X_test, part.y_test)
    for path in sorted(tables.glob("*.csv.gz")) if tables else []:
        table = np.loadtxt(path, delimiter=",")
        part = split(table[:, :-1], table[:, -1], seed=0)
        name = path.name.removesuffix(".csv.gz")
        yield name, Data(part.X_train[:rows], part.y_train[:rows], part.X_test, part.y_test)


def scores(name: str, kernel: Kernel, data: Data, seconds: float, start: Start | None = None) -> Scores:
    """Fit a kernel within this time, and test it."""
    started = time.perf_counter()
    model = GPRegressor(kernel, time_limit=seconds, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data.X, data.y, start=start)
    seconds = time.perf_counter() - started
    mean, std = model.predict(data.X_test, return_std=True)
    loss = nlpd(data.y_test, mean, std**2)
    verdict = model.certificate_.verdict
    return Scores(name, model.method_, verdict, loss, rmse(data.y_test, mean), seconds)


def compare(data: Data, time_limit: float, *, all_kernels: bool) -> dict[str, object]:
    """The chosen kernel next to `se`, and next to all others if asked for."""
    started = time.perf_counter()
    choice: Choice = choose(data.X, data.y, time_limit=SHARE_OF_TIME * time_limit)
    seconds = time.perf_counter() - started
    chosen = scores(choice.name, choice.kernel, data, time_limit - seconds, choice.start)
    names = list(COMPARED) if all_kernels else [SIMPLEST]
    others = [scores(name, named(name, data.X, data.y).kernel, data, time_limit) for name in names]
    return {
        "rows": len(data.y),
        "inputs": data.X.shape[1],
        "test_rows": len(data.y_test),
        "compared_on": choice.rows,
        "seconds_of_choice": seconds,
        "chosen": asdict(chosen),
        "others": [asdict(other) for other in others],
        "trials": [asdict(trial) for trial in choice.trials],
    }


def table(results: dict[str, dict[str, object]]) -> str:
    """A row for each data set."""
    lines = [
        "| data | rows, inputs | chosen kernel, by | NLPD: chosen | `se` | RMSE: chosen | `se` |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, result in results.items():
        chosen, se = result["chosen"], next(o for o in result["others"] if o["kernel"] == SIMPLEST)  # type: ignore[attr-defined]
        cells = [f"{s[what]:.3f}" for what in ("nlpd", "rmse") for s in (chosen, se)]  # type: ignore[index]
        size = f"{result['rows']}, {result['inputs']}"
        lines.append(f"| {name} | {size} | `{chosen['kernel']}`, {result['compared_on']} rows | {' | '.join(cells)} |")  # type: ignore[index]
    return "\n".join(lines)


def kernel_table(name: str, result: dict[str, object]) -> str:
    """A row for each kernel that was fitted to a data set."""
    last = {trial["kernel"]: trial for trial in result["trials"] if trial["rows"]}  # type: ignore[attr-defined]
    lines = [f"| kernel on {name} | likelihood, rows | NLPD | RMSE |", "| --- | --- | --- | --- |"]
    for other in sorted(result["others"], key=lambda other: other["nlpd"]):  # type: ignore[call-overload]
        trial = last.get(other["kernel"])
        likelihood = "not tried" if trial is None else f"{trial['bound']:.1f}, {trial['rows']}"
        lines.append(f"| `{other['kernel']}` | {likelihood} | {other['nlpd']:.3f} | {other['rmse']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--names", default=",".join(NAMES))
    options.add_argument("--all-kernels", default="")
    options.add_argument("--tables", type=Path)
    options.add_argument("--rows", type=int, default=2000)
    options.add_argument("--time-limit", type=float, default=60.0)
    options.add_argument("--output", type=Path, default=RESULTS)
    given = options.parse_args()
    record = json.loads(given.output.read_text()) if given.output.exists() else {}
    results = record.get("results", {})
    for name, data in problems([n for n in given.names.split(",") if n], given.rows, given.tables):
        every = name in given.all_kernels.split(",")
        if name in results and len(results[name]["others"]) >= (len(COMPARED) if every else 1):
            continue
        results[name] = compare(data, given.time_limit, all_kernels=every)
        clock = "processor" if time.perf_counter is time.process_time else "wall"  # see cpu_clock.py
        settings = {"time_limit": given.time_limit, "clock": clock, "threads": torch.get_num_threads()}
        given.output.write_text(json.dumps({**settings, "results": results}, indent=1) + "\n")
        print(table({name: results[name]}).splitlines()[-1], flush=True)
    print(table(results))
    for name, result in results.items():
        if len(result["others"]) > 1:
            print(kernel_table(name, result))
    worse = [n for n, r in results.items() if r["chosen"]["nlpd"] > r["others"][0]["nlpd"] + NO_WORSE]
    print(f"worse than {SIMPLEST} by more than {NO_WORSE} nats:", ", ".join(worse) or "nowhere")


if __name__ == "__main__":
    main()
