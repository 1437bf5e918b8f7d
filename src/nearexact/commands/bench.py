"""`nearexact bench`: run methods under time budgets, and look at the results."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from nearexact.commands import references
from nearexact.commands.exchange import exchange

if TYPE_CHECKING:
    from nearexact.bench.running.experiment import Experiment
    from nearexact.bench.running.watcher import Event

RESULT_SUFFIXES = (".json", ".jsonl", ".npz", ".txt")  # of the files that a sweep writes


def register(commands: Any) -> None:
    """Add the command to the parser of `nearexact`."""
    _add(commands.add_parser("bench", help="run methods under time budgets"))


def _add(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="start the runs of an experiment that are not done yet")
    run.add_argument("experiment", nargs="?", type=Path, help="a TOML file with the settings below; flags override it")
    run.add_argument(
        "--methods", help="names or file.py:Class, with commas between; with options: 'sgpr{kernel=matern32}', quoted"
    )
    run.add_argument("--datasets", help="names, paper for its twelve, or path.csv:target, with commas between")
    run.add_argument("--seeds", help='how many splits, 0, 1, …, or which ones: "3,4"; "7," is one')
    run.add_argument("--kernel", help="for every method that takes one, such as matern32 or se+linear")
    run.add_argument("--budget", help='training time of a run, such as "90s", "10m", "8h"')
    run.add_argument(
        "--hard-limit",
        help="wall-clock time of a run, evaluation included; default: five budgets and 2 minutes, 10m at least",
    )
    run.add_argument("--memory-limit", help='resident memory of a run, such as "4GB"')
    run.add_argument("--out", help="results folder")
    run.add_argument("--threads", type=int, help="of a run; default: all cores divided by the jobs")
    run.add_argument("--jobs", type=int, help="runs at the same time; timings are only comparable with 1, the default")
    run.add_argument("--evaluate-every", type=int, help="steps of a method, instead of ever longer training times")
    run.add_argument("--device", help="cpu (default) or cuda")
    run.add_argument(
        "--dask",
        metavar="ADDRESS|local[:N]",
        help="make the runs on the workers of a Dask cluster, or on N processes here, one at a time on each",
    )
    run.add_argument("--retry-failed", action="store_true", help="repeat failed runs, with the limits given now")
    run.add_argument("--quiet", action="store_true", help="no display")
    run.set_defaults(command=_run)

    status = commands.add_parser("status", help="what ran, what failed and why, what is left")
    status.add_argument("results", type=Path)
    status.set_defaults(command=_status)

    check = commands.add_parser("check", help="does a method keep to the protocol?")
    check.add_argument("method", help="a name or file.py:Class")
    check.set_defaults(command=_check)

    export = commands.add_parser("export", help="all results as one table")
    export.add_argument("results", type=Path)
    export.add_argument("-o", "--output", type=Path, required=True, help="a .csv or .parquet file")
    export.set_defaults(command=_export)

    fidelity = commands.add_parser("fidelity", help="distance from the exact GP: of posterior, of hyperparameters")
    fidelity.add_argument("results", type=Path)
    fidelity.add_argument("--memory-limit", help='for the exact GP, such as "8GB"; default: half of what is free')
    fidelity.add_argument("--time-limit", default="10m", help="to train an exact GP where there is no run of gpr")
    fidelity.add_argument("--exchange", metavar="A,B", help="two methods with each other's hyperparameters instead")
    fidelity.set_defaults(command=_fidelity)

    references.add(commands)

    merge = commands.add_parser("merge", help="put the runs of several results folders into one")
    merge.add_argument("results", type=Path, nargs="+")
    merge.add_argument("-o", "--output", type=Path, required=True, help="a folder, new or with results")
    merge.set_defaults(command=_merge)

    _add_report(commands.add_parser("report", help="one page, tables and figures from results folders"))
    commands.add_parser("methods", help="list methods").set_defaults(command=_methods)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="a folder for report.html, tables/ and figures/"
    )
    parser.add_argument("--published", action="store_true", help="show the paper's published results as well")
    parser.add_argument(
        "--over-budget", action="store_true", help="count values beyond the budget, which are marked with †"
    )
    parser.add_argument("--columns", help="of a table for a paper, with commas between, such as rmse,nlpd,elapsed")
    parser.add_argument("--methods", help="of the same table, with commas between")
    parser.add_argument("--references", type=Path, help="a file of frozen references; those of this package by default")
    parser.add_argument("--no-figures", action="store_true", help="only the page and the tables, which is faster")
    parser.add_argument("--x", choices=["time", "flops", "memory", "prediction"], default="time", help="of the figures")
    parser.set_defaults(command=_report)


def _run(options: argparse.Namespace) -> int:
    from nearexact.bench import store
    from nearexact.bench.running.experiment import Experiment, read_experiment, settings
    from nearexact.bench.running.terminal import sweep_display

    names = (
        "methods", "datasets", "seeds", "kernel", "budget", "hard_limit", "memory_limit", "out", "threads", "jobs",
        "device", "evaluate_every",
    )  # fmt: skip
    flags = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    fields: dict[str, Any] = read_experiment(options.experiment) if options.experiment else {}
    fields |= settings(**flags)
    missing = [f"--{name}" for name in ("methods", "datasets", "out") if name not in fields]
    if missing:
        raise ValueError(f"an experiment needs {', '.join(missing)}, or a file that has them")
    experiment = Experiment(**fields)
    total = len(experiment.specs())
    with _warnings_as_lines(), sweep_display(total, enabled=not options.quiet) as display:
        _sweep(experiment, options, display.show)
    folders = [store.RunFolder(spec.folder(experiment.out)) for spec in experiment.specs()]
    failed = [folder for folder in folders if folder.status() in store.FAILED_STATUSES]
    if failed and not options.quiet:
        print(f"{len(failed)} runs failed: nearexact bench status {experiment.out}", file=sys.stderr)
    return 0


def _sweep(experiment: Experiment, options: argparse.Namespace, on_event: Callable[[Event], None]) -> None:
    """Make the runs here or, with --dask, on a cluster."""
    if options.dask is None:
        from nearexact.bench.running.sweep import run_sweep

        run_sweep(experiment, retry_failed=options.retry_failed, on_event=on_event)
        return
    options.extra = "bench,dask"
    from nearexact.bench.running.cluster_sweep import run_cluster_sweep
    from nearexact.cluster.local import client_at

    with client_at(options.dask) as client:
        run_cluster_sweep(experiment, client, retry_failed=options.retry_failed, on_event=on_event)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show each warning as a line on standard error, such as one about a file that cannot be read."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        for line in str(message).splitlines():
            print(f"nearexact: {line}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _status(options: argparse.Namespace) -> int:
    from nearexact.bench.running.terminal import summarise

    with _warnings_as_lines():
        parts = summarise(options.results)
    for part in parts:
        Console().print(part)
    return 0


def _check(options: argparse.Namespace) -> int:
    from nearexact.bench.running.check import check_method

    findings = check_method(options.method)
    for finding in findings:
        print(f"{'ok    ' if finding.kept else 'FAILED'} {finding.rule}: {finding.explanation}")
    return 0 if all(finding.kept for finding in findings) else 1


def _export(options: argparse.Namespace) -> int:
    from nearexact.bench import load
    from nearexact.files import check_output, replacing

    output = check_output(options.output, (".csv", ".parquet"))
    _check_spared([options.results], [output])
    with _warnings_as_lines():
        frame = load(options.results)
    with replacing(output) as temporary:
        if output.suffix == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            # A column of Parquet has one type; what methods add may differ from one to the next, or be nested.
            types = {name: set(frame[name].dropna().map(type)) for name in frame.columns}
            mixed = [name for name, kinds in types.items() if len(kinds) > 1 or kinds & {dict, list}]
            frame.astype(dict.fromkeys(mixed, "string")).to_parquet(temporary)
    print(f"{len(frame)} rows: {options.output}")
    return 0


def _check_spared(folders: Iterable[Path], outputs: Iterable[Path]) -> None:
    """Raise a ValueError if an output is a file of the results, or data that they came from, under whatever name."""
    from nearexact.bench.store import runs
    from nearexact.files import is_same_file

    existing = [path for path in outputs if path.is_file()]
    if not existing:
        return
    folders = list(folders)
    specs = [run.read().get("spec") for results in folders for run in runs(results)]
    names = {str(spec.get("dataset")) for spec in specs if isinstance(spec, dict)}
    own_data = (Path(name.rpartition(":")[0]) for name in names)
    inputs = [path for results in folders for path in results.rglob("*") if path.suffix in RESULT_SUFFIXES]
    for taken in [*inputs, *(path for path in own_data if path.is_file())]:
        for path in existing:
            if is_same_file(path, taken):
                raise ValueError(f"the output {str(path)!r} would overwrite {str(taken)!r}")


def _fidelity(options: argparse.Namespace) -> int:
    from nearexact.bench import fidelity, store
    from nearexact.limits import parse_seconds

    if not options.results.is_dir():
        raise ValueError(f"there is no folder {str(options.results)!r} with results")
    if options.exchange is not None:
        return exchange(options, _listed(options.exchange))
    comparisons = []
    table = Table("data set", "method", "seed", "KL", "ΔLML/N", "NLPD", "exact", "diagnosis", box=None)
    limits = {"memory_limit": options.memory_limit, "time_limit": parse_seconds(options.time_limit)}
    for one in fidelity.compare(options.results, **limits):
        if isinstance(one, str):
            print(f"not compared: {one}", file=sys.stderr)
            continue
        comparisons.append(one)
        fidelity.write(options.results, comparisons)  # after each one, since the next may take hours
        numbers = [f"{value:.3g}" for value in (one.kl, one.lml_difference, one.nlpd, one.nlpd_exact)]
        table.add_row(one.dataset, one.method, str(one.seed), *numbers, one.diagnosis)
    if not comparisons:
        raise ValueError(f"nothing in {options.results} can be compared with the exact GP")
    Console().print(table)
    print(options.results / store.FIDELITY)
    return 0


def _listed(text: str | None) -> list[str]:
    """The names in a list with commas between; commas within braces belong to a name."""
    from nearexact.bench.method_labels import split

    return [] if text is None else split(text)


def _merge(options: argparse.Namespace) -> int:
    from nearexact.bench.merging import merge

    with _warnings_as_lines():
        added = merge(options.results, options.output)
        _warn_of_differences(options.output)
    print(f"{added} runs added: {options.output}")
    return 0


def _warn_of_differences(results: Path) -> None:
    """Say in which respect the runs of a folder are not comparable."""
    from nearexact.bench.comparability import remarks
    from nearexact.bench.store import recorded_runs

    if found := remarks(recorded_runs(results)):
        warnings.warn("\n".join(found), stacklevel=2)


def _report(options: argparse.Namespace) -> int:
    from nearexact.bench.merging import together
    from nearexact.bench.report.page import PAGE, write_report

    folders = (options.output / name for name in ("tables", "figures"))
    _check_spared(options.results, [options.output / PAGE, *(path for folder in folders for path in folder.glob("*"))])
    costs = {"time": "elapsed", "flops": "flops", "memory": "peak_memory_mb", "prediction": "predict_seconds"}
    with _warnings_as_lines(), together(options.results) as results:
        paths = write_report(
            results,
            options.output,
            with_published=options.published,
            with_figures=not options.no_figures,
            with_over_budget=options.over_budget,
            columns=_listed(options.columns),
            methods=_listed(options.methods),
            frozen=options.references,
            x=costs[options.x],
        )
        _warn_of_differences(results)
    print("\n".join(str(path) for path in paths))
    return 0


def _methods(_: argparse.Namespace) -> int:
    from nearexact.bench import methods

    print("\n".join(methods.names()))
    return 0
