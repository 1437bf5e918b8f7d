"""`nearexact paper`: experiments of the paper."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from nearexact.bench.paper.presets import Study


def register(commands: Any) -> None:
    """Add the command to the parser of `nearexact`."""
    _add(commands.add_parser("paper", help="experiments of the paper"))


def _add(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("list", help="the presets and their scales").set_defaults(command=_list)
    run = commands.add_parser("run", help="run a preset, and draw its figures")
    run.add_argument("name", help="as `nearexact paper list` says")
    run.add_argument("--out", type=Path, required=True, help="results folder; the same command continues")
    run.add_argument("--scale", help="where a preset has several")
    run.add_argument("--threads", type=int, help="of a run; all cores by default")
    run.add_argument("--quiet", action="store_true", help="no display")
    run.set_defaults(command=_run)
    figures = commands.add_parser("figures", help="draw the figures of a results folder again")
    figures.add_argument("results", type=Path, help="the folder of `nearexact paper run`")
    figures.set_defaults(command=_figures)

    svgp = commands.add_parser("svgp", help="how SVGP's settings change its training: a grid, its best, ablations")
    svgp.add_argument("--out", type=Path, required=True, help="results folder; the same command continues")
    svgp.add_argument("--dataset", help="a name or path.csv:target; keggundirected by default")
    svgp.add_argument("--steps", type=int, help="of Adam; 20000 by default")
    svgp.add_argument("--inducing", type=int, help="number of inducing points; 1000 by default")
    svgp.add_argument("--budget", help='training time of a run; "8h" by default')
    svgp.add_argument("--seed", type=int, help="of the split and the training; 0 by default")
    svgp.add_argument("--reference-seeds", type=int, help="splits that SGPR's mean is over; 5 by default")
    svgp.add_argument("--threads", type=int, help="of a run; all cores by default")
    for name, kind in (("batch-size", int), ("learning-rate", float), ("beta-1", float), ("beta-2", float)):
        svgp.add_argument(f"--{name}", type=kind, nargs="+", help="only these values of the grid, or others")
    svgp.add_argument("--scheduler", choices=["on", "off"], nargs="+", help="only these")
    svgp.add_argument(
        "--ablation-only", action="store_true", help="only what differs from the published best in one setting"
    )
    svgp.add_argument("--quiet", action="store_true", help="no display")
    svgp.set_defaults(command=_svgp)


def _list(_: argparse.Namespace) -> int:
    from nearexact.bench.paper.presets import PRESETS

    table = Table("preset", "scale", "what", box=None)
    for preset in PRESETS.values():
        table.add_row(preset.name, "", preset.description)
        for scale, meaning in preset.scales.items():
            table.add_row("", scale, meaning)
    Console().print(table)
    return 0


def _run(options: argparse.Namespace) -> int:
    from nearexact.bench.paper import presets
    from nearexact.bench.running.terminal import sweep_display

    preset = presets.find(options.name)
    study = preset.study(options.out, options.scale, options.threads)
    presets.claim(options.out, preset, options.scale)
    with sweep_display(study.total, enabled=study.total > 0 and not options.quiet) as display:
        study.run(display.show)
    return _show(study)


def _figures(options: argparse.Namespace) -> int:
    from nearexact.bench.paper import presets

    return _show(presets.recorded(options.results))


def _show(study: Study) -> int:
    paths = study.write()
    for line in (*study.findings(), *paths):
        print(line)
    return 0


def _svgp(options: argparse.Namespace) -> int:
    from nearexact.bench.paper.svgp import SVGPExperiment
    from nearexact.bench.running.terminal import sweep_display
    from nearexact.limits import parse_seconds

    names = ("dataset", "steps", "inducing", "seed", "reference_seeds", "threads")
    given = {name: getattr(options, name) for name in names}
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
    with sweep_display(experiment.total, enabled=not options.quiet) as display:
        experiment.run(display.show)
    for failure in experiment.failures():
        print(f"failed: {failure}", file=sys.stderr)
    print(f"best: {experiment.best().name}")
    for path in experiment.write():
        print(path)
    return 0
