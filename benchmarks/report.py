"""What a report of 60 runs costs: seconds, and how often the same thing is computed or read again.

Prints a table and writes it as JSON. With `--against <folder>/src` another version of the package takes turns with this
one, each report in a process of its own; the best of several rounds counts. Run it from the root of the repository.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTED = {"smooth": ("curves.py", "smooth"), "frontiers": ("pareto.py", "frontiers")}  # file and function
DATASETS, SEEDS = 3, 4


def write_runs(folder: Path) -> None:
    """60 runs of five methods that nobody has trained."""
    sys.path.insert(0, str(ROOT))
    from tests.bench.synthetic import NOISE, constant_trace, curve_trace, sgpr_trace, write_run

    for k in range(DATASETS):
        for seed in range(SEEDS):
            write_run(folder, f"set{k}", "sgpr", seed, sgpr_trace(seed, steps=12))
            write_run(folder, f"set{k}", "gpr", seed, curve_trace(seed, final=300.0, exact=True, points=60))
            for method in ("itergp", "svgp"):
                write_run(folder, f"set{k}", method, seed, curve_trace(seed, final=299.0, points=60))
            write_run(folder, f"set{k}", "mean", seed, constant_trace(NOISE, 1.0, 1.4))


def measure(runs: Path) -> dict[str, float]:
    """Seconds of the page with its tables, seconds with figures, and the counts, of the version that is imported."""
    from nearexact.bench.report.page import write_report

    reads = 0

    def count_reads(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal reads
        reads += event == "open" and str(arguments[0]).endswith("run.json")

    with tempfile.TemporaryDirectory() as out:
        write_report(runs, Path(out), with_figures=False)  # the first one also imports and compiles templates
        page = seconds(lambda: write_report(runs, Path(out), with_figures=False))
        figures = seconds(lambda: write_report(runs, Path(out)))
        sys.addaudithook(count_reads)
        profile = cProfile.Profile()
        profile.runcall(write_report, runs, Path(out))
    calls: dict[tuple[str, str], float] = {}
    for (file, _, name), (_, number, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        calls[Path(file).name, name] = number
    counts = {name: calls.get(place, 0) for name, place in COUNTED.items()}
    return {"page_seconds": page, "all_seconds": figures, **counts, "run_json_reads": reads}


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="the folder `src` of another version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # in the process of a version
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    sources = {"before": options.against.resolve()} if options.against else {}
    sources["now"] = ROOT / "src"
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder))
        command = [sys.executable, __file__, "--measure", folder]
        for _ in range(options.rounds):
            for name, source in sources.items():
                environment = {**os.environ, "PYTHONPATH": str(source)}
                text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                values = json.loads(text)
                best[name] = {key: min(value, best.get(name, values)[key]) for key, value in values.items()}
    print(f"{'':16}" + "".join(f"{name:>10}" for name in best))
    for key in best["now"]:
        print(f"{key:16}" + "".join(f"{values[key]:10.4g}" for values in best.values()))
    if options.output:
        content = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "runs": 60, "rounds": options.rounds}
        options.output.write_text(json.dumps(content | best, indent=1) + "\n")


if __name__ == "__main__":
    main()
