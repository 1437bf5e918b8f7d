"""What a report of 60 runs costs: seconds, and how often the same thing is computed or read again.

Prints a table and writes it as JSON. With `--against <folder>/src` another version of the package takes turns with this
one, each in a process of its own; the best of several rounds counts. Seconds are those of the processor, which depend
less on what else the machine does.
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


def measure_seconds(runs: Path) -> dict[str, float]:
    """Of the page with its tables, and with figures, by the version that is imported."""
    from nearexact.bench.report.page import write_report

    with tempfile.TemporaryDirectory() as out:
        write_report(runs, Path(out), with_figures=False)  # the first one also imports and compiles templates
        start = time.process_time()
        write_report(runs, Path(out), with_figures=False)
        page = time.process_time()
        write_report(runs, Path(out))
        return {"page_seconds": page - start, "all_seconds": time.process_time() - page}


def count_calls(runs: Path) -> dict[str, float]:
    """Calls of the functions in COUNTED, and reads of run.json, in a report with figures."""
    from nearexact.bench.report.page import write_report

    reads = 0

    def count_reads(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal reads
        reads += event == "open" and str(arguments[0]).endswith("run.json")

    sys.addaudithook(count_reads)
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as out:
        profile.runcall(write_report, runs, Path(out))
    calls: dict[tuple[str, str], float] = {}
    for (file, _, name), (_, number, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        calls[Path(file).name, name] = number
    return {name: calls.get(place, 0) for name, place in COUNTED.items()} | {"run_json_reads": reads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="the folder `src` of another version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # in the process of a version
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure or options.count:
        print(json.dumps(measure_seconds(options.measure) if options.measure else count_calls(options.count)))
        return
    sources = {"before": options.against.resolve()} if options.against else {}
    sources["now"] = ROOT / "src"
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder))
        for act in ["--count", *["--measure"] * options.rounds]:
            for name, source in sources.items():
                command = [sys.executable, __file__, act, folder]
                environment = {**os.environ, "PYTHONPATH": str(source)}
                text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                values, earlier = json.loads(text), best.setdefault(name, {})
                earlier |= {key: min(value, earlier.get(key, value)) for key, value in values.items()}
                print(name, text.strip(), file=sys.stderr, flush=True)
    print(f"{'':16}" + "".join(f"{name:>10}" for name in best))
    for key in best["now"]:
        print(f"{key:16}" + "".join(f"{values[key]:10.4g}" for values in best.values()))
    if options.output:
        content = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "runs": 60, "rounds": options.rounds}
        options.output.write_text(json.dumps(content | best, indent=1) + "\n")


if __name__ == "__main__":
    main()
