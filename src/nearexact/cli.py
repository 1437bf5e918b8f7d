"""The command `nearexact`. Errors are one line on standard error and exit status 2; Ctrl-C is 130."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nearexact.commands import data

WRONG_USE, CTRL_C = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nearexact", description="Near-exact Gaussian processes, and their benchmark."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    data.register(commands)
    _add_bench(commands.add_parser("bench", help="run methods under time budgets"))
    _add_datasets(commands.add_parser("datasets", help="data sets of the benchmark"))
    _add_paper(commands.add_parser("paper", help="experiments of the paper"))
    return parser


def _add_bench(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="make the runs of an experiment that are not done yet")
    run.add_argument("experiment", nargs="?", type=Path, help="a TOML file with the settings below; flags override it")
    run.add_argument("--methods", help="names or file.py:Class, with commas between")
    run.add_argument("--datasets", help="names or path.csv:target, with commas between")
    run.add_argument("--seeds", type=int, help="how many splits: 0, 1, …")
    run.add_argument("--budget", help='training time of a run, such as "90s", "10m", "8h"')
    run.add_argument("--hard-limit", help="wall-clock time of a run, evaluation included; five budgets and two minutes")
    run.add_argument("--memory-limit", help='resident memory of a run, such as "4GB"')
    run.add_argument("--out", help="results folder")
    run.add_argument("--threads", type=int, help="of a run; all cores divided by the jobs")
    run.add_argument("--jobs", type=int, help="runs at the same time; timings are only comparable with 1, the default")
    run.add_argument("--device", help="cpu (default) or cuda")
    run.add_argument("--retry-failed", action="store_true", help="make failed runs again")
    run.add_argument("--quiet", action="store_true", help="no display")
    run.set_defaults(command=_bench_run)

    status = commands.add_parser("status", help="what ran, what failed and why, what is left")
    status.add_argument("results", type=Path)
    status.set_defaults(command=_bench_status)

    check = commands.add_parser("check", help="does a method keep to the protocol?")
    check.add_argument("method", help="a name or file.py:Class")
    check.set_defaults(command=_bench_check)

    export = commands.add_parser("export", help="all results as one table")
    export.add_argument("results", type=Path)
    export.add_argument("-o", "--output", type=Path, required=True, help="a .csv or .parquet file")
    export.set_defaults(command=_bench_export)

    fidelity = commands.add_parser("fidelity", help="how near to the exact GP, and why not: posterior or parameters")
    fidelity.add_argument("results", type=Path)
    fidelity.add_argument("--memory-limit", help='for the exact GP, such as "8GB"; half of what is free')
    fidelity.add_argument("--time-limit", default="10m", help="to train an exact GP where there is no run of gpr")
    fidelity.set_defaults(command=_bench_fidelity)

    _add_report(commands.add_parser("report", help="one page, tables and figures from a results folder"))
    commands.add_parser("methods", help="list methods").set_defaults(command=_bench_methods)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="a folder for report.html, tables/ and figures/"
    )
    parser.add_argument("--published", action="store_true", help="lay the paper's published results beside")
    parser.add_argument("--no-figures", action="store_true", help="only the page and the tables, which is faster")
    parser.add_argument("--x", choices=["time", "flops", "memory", "prediction"], default="time", help="of the figures")
    parser.set_defaults(command=_bench_report)


def _add_datasets(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("list", help="all data sets").set_defaults(command=_datasets_list)
    fetch = commands.add_parser("fetch", help="download data sets")
    fetch.add_argument("names", nargs="*", help="all by default")
    fetch.set_defaults(command=_datasets_fetch)
    info = commands.add_parser("info", help="about one data set")
    info.add_argument("name")
    info.set_defaults(command=_datasets_info)


def _add_paper(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    svgp = commands.add_parser("svgp", help="how SVGP's settings change its training: a grid, its best, ablations")
    svgp.add_argument("--out", type=Path, required=True, help="results folder; the same command continues")
    svgp.add_argument("--dataset", help="a name or path.csv:target; keggundirected by default")
    svgp.add_argument("--steps", type=int, help="of Adam; 20000 by default")
    svgp.add_argument("--inducing", type=int, help="number of inducing points; 1000 by default")
    svgp.add_argument("--budget", help='training time of a run; "8h" by default')
    svgp.add_argument("--seed", type=int, help="of the split and the training; 0 by default")
    svgp.add_argument("--threads", type=int, help="of a run; all cores by default")
    for name, kind in (("batch-size", int), ("learning-rate", float), ("beta-1", float), ("beta-2", float)):
        svgp.add_argument(f"--{name}", type=kind, nargs="+", help="only these values of the grid, or others")
    svgp.add_argument("--scheduler", choices=["on", "off"], nargs="+", help="only these")
    svgp.add_argument(
        "--ablation-only", action="store_true", help="only what differs from the published best in one setting"
    )
    svgp.add_argument("--quiet", action="store_true", help="no display")
    svgp.set_defaults(command=_paper_svgp)


# ---- bench -----------------------------------------------------------------------------------------------------------


def _bench_run(options: argparse.Namespace) -> int:
    from nearexact.bench import store
    from nearexact.bench.display import sweep_display
    from nearexact.bench.sweep import Experiment, read_experiment, run_sweep, settings

    names = ("methods", "datasets", "seeds", "budget", "hard_limit", "memory_limit", "out", "threads", "jobs", "device")
    flags = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    fields: dict[str, Any] = read_experiment(options.experiment) if options.experiment else {}
    fields |= settings(**flags)
    missing = [f"--{name}" for name in ("methods", "datasets", "out") if name not in fields]
    if missing:
        raise ValueError(f"an experiment needs {', '.join(missing)}, or a file that has them")
    experiment = Experiment(**fields)
    with sweep_display(len(experiment.specs()), enabled=not options.quiet) as display:
        run_sweep(experiment, retry_failed=options.retry_failed, on_event=display.show)
    folders = [store.RunFolder(spec.folder(experiment.out)) for spec in experiment.specs()]
    failed = [folder for folder in folders if folder.status() in store.FAILED]
    if failed and not options.quiet:
        print(f"{len(failed)} runs failed: nearexact bench status {experiment.out}", file=sys.stderr)
    return 0


def _bench_status(options: argparse.Namespace) -> int:
    from nearexact.bench.status import summarise

    for part in summarise(options.results):
        Console().print(part)
    return 0


def _bench_check(options: argparse.Namespace) -> int:
    from nearexact.bench.check import check_method

    findings = check_method(options.method)
    for finding in findings:
        print(f"{'ok    ' if finding.kept else 'FAILED'} {finding.rule}: {finding.explanation}")
    return 0 if all(finding.kept for finding in findings) else 1


def _bench_export(options: argparse.Namespace) -> int:
    from nearexact.bench import load

    frame = load(options.results)
    if options.output.suffix == ".parquet":
        # A column of Parquet has one type; what methods add may differ from one to the next, or be nested.
        types = {name: set(frame[name].dropna().map(type)) for name in frame.columns}
        mixed = [name for name, found in types.items() if len(found) > 1 or found & {dict, list}]
        frame.astype(dict.fromkeys(mixed, "string")).to_parquet(options.output)
    elif options.output.suffix == ".csv":
        frame.to_csv(options.output, index=False)
    else:
        raise ValueError(f"the output must be a .csv or .parquet file, got {options.output}")
    print(f"{len(frame)} rows: {options.output}")
    return 0


def _bench_fidelity(options: argparse.Namespace) -> int:
    from nearexact.bench import fidelity
    from nearexact.limits import parse_seconds

    if not options.results.is_dir():
        raise ValueError(f"there is no folder {str(options.results)!r} with results")
    found = []
    table = Table("data set", "method", "seed", "KL", "ΔLML/N", "NLPD", "exact", "diagnosis", box=None)
    limits = {"memory_limit": options.memory_limit, "time_limit": parse_seconds(options.time_limit)}
    for one in fidelity.compare(options.results, **limits):
        if isinstance(one, str):
            print(f"not compared: {one}", file=sys.stderr)
            continue
        found.append(one)
        fidelity.write(options.results, found)  # as they come
        numbers = [f"{value:.3g}" for value in (one.kl, one.lml_difference, one.nlpd, one.nlpd_exact)]
        table.add_row(one.dataset, one.method, str(one.seed), *numbers, one.diagnosis)
    if not found:
        raise ValueError(f"nothing in {options.results} can be compared with the exact GP")
    Console().print(table)
    print(options.results / fidelity.FILE)
    return 0


def _bench_report(options: argparse.Namespace) -> int:
    from nearexact.bench.report import write_report

    costs = {"time": "elapsed", "flops": "flops", "memory": "peak_memory_mb", "prediction": "predict_seconds"}
    paths = write_report(
        options.results,
        options.output,
        with_published=options.published,
        with_figures=not options.no_figures,
        x=costs[options.x],
    )
    print("\n".join(str(path) for path in paths))
    return 0


def _bench_methods(_: argparse.Namespace) -> int:
    from nearexact.bench import methods

    print("\n".join(methods.names()))
    return 0


# ---- paper -----------------------------------------------------------------------------------------------------------


def _paper_svgp(options: argparse.Namespace) -> int:
    from nearexact.bench.display import sweep_display
    from nearexact.bench.paper import SVGPExperiment
    from nearexact.limits import parse_seconds

    given = {name: getattr(options, name) for name in ("dataset", "steps", "inducing", "seed", "threads")}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.budget is not None:
        fields["budget_seconds"] = parse_seconds(options.budget)
    grid = {name: getattr(options, name) for name in ("batch_size", "learning_rate", "beta_1", "beta_2")}
    grid["scheduler"] = [value == "on" for value in options.scheduler] if options.scheduler else None
    experiment = SVGPExperiment(
        options.out,
        grid={name: values for name, values in grid.items() if values},
        ablation_only=options.ablation_only,
        **fields,
    )
    with sweep_display(len(experiment.experiments), enabled=not options.quiet) as display:
        experiment.run(display.show)
    for failure in experiment.failures():
        print(f"failed: {failure}", file=sys.stderr)
    print(f"best: {experiment.best().name}")
    for path in experiment.write():
        print(path)
    return 0


# ---- datasets --------------------------------------------------------------------------------------------------------


def _datasets_list(_: argparse.Namespace) -> int:
    from nearexact.bench import datasets

    table = Table("name", "rows", "inputs", "here", "what", box=None)
    for dataset in datasets.REGISTRY.values():
        here = "yes" if all(datasets.location(file) for file in dataset.files) else "no"
        table.add_row(dataset.name, str(dataset.rows), str(dataset.inputs), here, dataset.description)
    Console().print(table)
    return 0


def _datasets_fetch(options: argparse.Namespace) -> int:
    from nearexact.bench import datasets

    for dataset in [datasets.find(name) for name in options.names or datasets.REGISTRY]:
        for file in dataset.files:
            print(datasets.fetch(file, progress=True))
    return 0


def _datasets_info(options: argparse.Namespace) -> int:
    from nearexact.bench import datasets

    dataset = datasets.find(options.name)
    n_train = int(datasets.TRAINING_SHARE * dataset.rows)
    print(f"{dataset.name}: {dataset.description}")
    print(f"{dataset.rows} rows, {dataset.inputs} inputs; {n_train} rows to train, {dataset.rows - n_train} to test")
    for file in dataset.files:
        print(f"{file.name}\n  from {file.url}\n  sha256 {file.sha256}\n  here: {datasets.location(file) or 'no'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
