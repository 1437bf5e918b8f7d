"""The results folder: its runs, the plan of what was asked for, and the table made of all that.

One run is one folder, and its path is its key:

results/<data set>/<method>/seed-<n>/
    run.json         what was asked for, how it ended, on which machine and with which versions
    trace.jsonl      one line for each evaluation, appended and flushed as they come
    predictions/     test predictions at the milestones and at the end of the budget
    lock             held by the process that writes
    log.txt          what the method printed
    aside-<k>/       all of this of an earlier run with the same key: interrupted, failed, or made otherwise
results/experiment.json    the plan
results/fidelity.json      the comparison with the exact GP, if there is one
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from nearexact import files
from nearexact.bench import method_labels
from nearexact.bench.json_values import as_json_value, bounded, is_number, is_scalar, is_whole, parse_json
from nearexact.bench.run_checks import check_spec, checked_run
from nearexact.typing import FloatArray

RUN, TRACE, PREDICTIONS, LOCK = "run.json", "trace.jsonl", "predictions", "lock"
LOG = "log.txt"
PLAN = "experiment.json"  # the runs that were asked for, so that `bench status` can say what is left
FIDELITY = "fidelity.json"  # the comparison with the exact GP
EXCHANGE = "exchange.json"  # methods with each other's hyperparameters
ASIDE = "aside-"  # and a number
VERSION = 1  # of run.json; files without a number have this one
LONGEST_NAME = 120  # characters of a folder's name; file systems allow 255
TAIL_BYTES = 2**16  # of a trace, enough for its last line


class RunStatus(StrEnum):
    """How far a run is, or how it ended."""

    FINISHED = "finished"  # the method was done
    BUDGET = "budget"  # the training time was spent
    KILLED = "killed"  # at the hard limit, or from outside
    OUT_OF_MEMORY = "out-of-memory"
    ERROR = "error"
    WAITING = "waiting"  # asked for and not started
    RUNNING = "running"
    INTERRUPTED = "interrupted"  # by the end of the sweep: it starts again next time
    ELSEWHERE = "elsewhere"  # another sweep is making it; never in run.json


SUCCESSFUL_STATUSES = (RunStatus.FINISHED, RunStatus.BUDGET)
FAILED_STATUSES = (RunStatus.KILLED, RunStatus.OUT_OF_MEMORY, RunStatus.ERROR)
ENDED_STATUSES = (*SUCCESSFUL_STATUSES, *FAILED_STATUSES)

COLUMNS = (
    "dataset", "method", "seed", "elapsed", "predict_seconds", "m", "elbo", "upper_bound", "rmse", "nlpd",
    "peak_memory_mb", "flops", "milestone", "status", "base_method", "options", "over_budget",
)  # fmt: skip
NO_NUMBERS = ("dataset", "method", "seed", "milestone", "status", "base_method", "options", "over_budget")
NUMBERS = [name for name in COLUMNS if name not in NO_NUMBERS]


@dataclass(frozen=True)
class RunSpec:
    """What a run is asked to do."""

    dataset: str
    method: str  # its label, see `method_labels`
    seed: int
    budget_seconds: float
    hard_limit_seconds: float  # of wall-clock time, evaluation included
    memory_limit: int | None = None  # bytes
    device: str = "cpu"
    threads: int = 1
    options: dict[str, Any] = field(default_factory=dict)  # of the method
    reference: str | None = None  # where the method comes from: a name or file.py:Class; None in old files: the label
    base_method: str | None = None  # the method's name without options; None in old files
    evaluate_every: int | None = None  # steps; None for a schedule by training time

    def folder(self, results: Path) -> Path:
        """Where the run lives."""
        return results / as_name(self.dataset) / as_name(self.method) / f"seed-{self.seed}"


def as_name(text: str) -> str:
    """Text that is a path as a name without slashes; a different path, a different name. Labels stay as they are."""
    if re.fullmatch(r"[\w.+={},()-]+", text) and len(text) <= LONGEST_NAME:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', Path(text).name)[:LONGEST_NAME]}-{digest}"


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """What run.json says, without entries that are damaged; empty if there is none, or if all of it is damaged.

        ValueError if a later version of this package has written it.
        """
        return self._read()[0]

    def problem(self) -> str | None:
        """A sentence about what is damaged in run.json and therefore left out; None if nothing is."""
        return self._read()[1]

    def _read(self) -> tuple[dict[str, Any], str | None]:
        path = self.path / RUN
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
            if isinstance(content, dict) and is_whole(content.get("version")) and content["version"] > VERSION:
                newer = content["version"]
            else:
                content, problems = checked_run(content)
                return content, f"{path}: entries are left out: {'; '.join(problems)}" if problems else None
        except (OSError, ValueError) as error:
            return {}, f"{path} is not the record of a run and is left out: {error}"
        raise ValueError(f"{path} is of version {newer}, and this nearexact only reads versions up to {VERSION}")

    def update(self, **changes: Any) -> None:
        """Change entries of run.json, all of them or, whatever happens, none. What is too long is cut."""
        cut = {name: bounded(value) for name, value in changes.items()}
        write_whole(self.path / RUN, json.dumps({**self.read(), **cut}, indent=1) + "\n")

    def status(self) -> RunStatus:
        """How the run ended, or how far it is."""
        status = self.read().get("status")
        if status in ENDED_STATUSES:
            return RunStatus(status)
        if status is None:
            return RunStatus.WAITING
        return RunStatus.RUNNING if self.is_locked() else RunStatus.INTERRUPTED

    def prepare(self, spec: RunSpec) -> None:
        """Make the folder ready for a run from the beginning; what an earlier one has left is put aside."""
        self.start_over({"version": VERSION, "spec": asdict(spec)})

    def start_over(self, content: dict[str, Any]) -> None:
        """Write a new run.json, of a run that is interrupted until it says otherwise; put aside what was there."""
        self.path.mkdir(parents=True, exist_ok=True)
        leftovers = any((self.path / name).exists() for name in (TRACE, PREDICTIONS))
        aside = None
        if leftovers or self.read().get("status") in ENDED_STATUSES:
            aside = next(p for k in range(1, 10**6) if not (p := self.path / f"{ASIDE}{k}").exists())
            aside.mkdir()
            if (self.path / RUN).exists():
                write_whole(aside / RUN, (self.path / RUN).read_text(encoding="utf-8", errors="replace"))
        # Before the trace goes: a run must never seem to have ended without one.
        write_whole(self.path / RUN, json.dumps({**content, "status": RunStatus.INTERRUPTED}, indent=1) + "\n")
        if aside is not None:
            for part in (TRACE, PREDICTIONS, LOG):
                with suppress(FileNotFoundError):
                    (self.path / part).rename(aside / part)

    def lock(self) -> FileLock:
        """Held by the process that writes; it is released when that process ends, however it ends."""
        return FileLock(self.path / LOCK)

    def is_locked(self) -> bool:
        """Whether a process is writing."""
        lock = self.lock()
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return True
        except OSError:
            return False
        lock.release()
        return False

    def append(self, point: dict[str, Any]) -> None:
        """Add a line to the trace; it survives the end of this process, however that comes."""
        line = memoryview((json.dumps(point, default=as_json_value) + "\n").encode())
        with (self.path / TRACE).open("ab", buffering=0) as file:
            start = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:  # the disk is full, say: half a line is worse than none
                file.truncate(start)
                raise

    def sync(self) -> None:
        """Wait until the trace is on the disk, before run.json says that it is complete."""
        if (self.path / TRACE).exists():
            with (self.path / TRACE).open("rb") as file:
                os.fsync(file.fileno())

    def save_predictions(self, number: int, mean: FloatArray, variance: FloatArray) -> None:
        """Keep the test predictions of the trace's line with this number."""
        folder = self.path / PREDICTIONS
        folder.mkdir(exist_ok=True)
        np.savez(folder / f"{number}.npz", mean=mean, variance=variance)

    def points(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The lines of the trace, and what is wrong with those that are left out."""
        try:
            lines = (self.path / TRACE).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return [], []
        points, problems = [], []
        for number, line in enumerate(lines, start=1):
            try:
                points.append(_point(line))
            except (TypeError, ValueError, OverflowError):
                problems.append(f"{self.path / TRACE}: line {number} of {len(lines)} is not complete and is left out")
        return points, problems

    def last_point(self) -> dict[str, Any]:
        """The last complete line of the trace, without reading the others; empty if there is none."""
        for line in reversed(_last_lines(self.path / TRACE)):
            with suppress(TypeError, ValueError, OverflowError):
                return _point(line)
        return {}

    def append_log(self, text: bytes) -> None:
        """Add to what the run has printed."""
        with (self.path / LOG).open("ab") as file:
            file.write(text)

    def log_tail(self) -> list[str]:
        """The last lines of what the run has printed."""
        return _last_lines(self.path / LOG)


def _last_lines(path: Path) -> list[str]:
    """The end of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            return file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return []


def _point(line: str) -> dict[str, Any]:
    """A line of the trace; TypeError, ValueError or OverflowError if it is not one."""
    point = parse_json(line)
    info = point.get("info", {}) if isinstance(point, dict) else None
    if not isinstance(info, dict) or not is_number(point.get("elapsed")):
        raise ValueError("not a point")
    if not all(is_scalar(value) for name, value in point.items() if name != "info"):
        raise ValueError("a point is numbers, and an object with further information")
    numbers = {name: float(point[name]) for name in NUMBERS if point.get(name) is not None}
    # A column of a table cannot hold whole numbers of more than 64 bits.
    info = {name: float(value) if type(value) is int and not is_whole(value) else value for name, value in info.items()}
    return {**point, **numbers, "info": info}


def runs(results: str | os.PathLike[str]) -> Iterator[RunFolder]:
    """All runs below a folder, but for those that were put aside."""
    paths = (path.parent for path in sorted(Path(results).rglob(RUN)))
    return (RunFolder(path) for path in paths if not path.name.startswith(ASIDE))


class RecordedRun(RunFolder):
    """A run whose run.json is read only once, for those who look at results and do not write any."""

    @cached_property
    def _record(self) -> tuple[dict[str, Any], str | None]:
        return super()._read()

    def _read(self) -> tuple[dict[str, Any], str | None]:
        return self._record


def recorded_runs(results: str | os.PathLike[str]) -> list[RecordedRun]:
    """All runs below a folder, to look at; ValueError if there is no such folder."""
    if not Path(results).is_dir():
        raise ValueError(f"there is no folder {os.fspath(results)!r} with results")
    return [RecordedRun(run.path) for run in runs(results)]


def planned(results: Path) -> list[RunSpec]:
    """The runs that sweeps into this folder were asked for; none, with a warning, if the plan is damaged."""
    try:
        plan = parse_json((results / PLAN).read_text(encoding="utf-8"))
        for spec in plan.values():
            check_spec(spec)
        return [RunSpec(**spec) for spec in plan.values()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(f"{results / PLAN} is not a plan and is left out: {error}", stacklevel=2)
        return []


def read_fidelity(results: Path, name: str = FIDELITY) -> list[dict[str, Any]]:
    """The comparison with the exact GP, or of two methods; empty if there is none, ValueError if it is damaged."""
    path = results / name
    try:
        records = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{path} must hold a list of records, got {type(records).__name__}")
    for record in records:
        if not all(isinstance(record.get(name), str) for name in ("dataset", "method")):
            raise ValueError(f"{path} has a record without a data set or a method")
        if not all(is_scalar(value) for value in record.values()):
            raise ValueError(f"{path} has a record with more than texts and numbers in it")
    return records


def add_to_plan(results: Path, specs: Iterable[RunSpec]) -> None:
    """Remember that these runs are asked for, next to those of earlier sweeps."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        plan = {str(spec.folder(results).relative_to(results)): asdict(spec) for spec in [*planned(results), *specs]}
        write_whole(results / PLAN, json.dumps(plan, indent=1) + "\n")
    except OSError as error:
        raise OSError(f"results cannot be written to {results}: {error}") from error


def load(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """All results below a folder as one table: a row for each recorded point, one for a failed run without any.

    What cannot be read is left out, with a warning that names it.
    """
    return load_runs(folder, recorded_runs(folder))


def load_runs(folder: str | os.PathLike[str], recorded: Iterable[RunFolder]) -> pd.DataFrame:
    """The same for a folder whose runs have been listed already."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for run in recorded:
        spec, problem = run.read().get("spec"), run.problem()
        problems += [problem] if problem else []
        if spec is None:
            continue
        key = {name: spec[name] for name in ("dataset", "method", "seed")} | {"status": run.status().value}
        key["base_method"] = spec.get("base_method") or method_labels.base_name(spec["method"])
        key["options"] = json.dumps(spec.get("options") or {}, sort_keys=True)
        budget = spec.get("budget_seconds") or math.inf
        points, torn = run.points()
        problems += torn
        rows += [
            {**point.pop("info", {}), **point, **key, "over_budget": point["elapsed"] > budget} for point in points
        ]
        if not points:
            rows.append(key)
    for trace in sorted(Path(folder).rglob(TRACE)):
        if not (trace.parent / RUN).exists() and not trace.parent.name.startswith(ASIDE):
            problems.append(f"{trace} is left out: there is no {RUN} next to it")
    if problems:
        warnings.warn("\n".join(problems), stacklevel=3)
    frame = pd.DataFrame(rows)
    frame = frame.reindex(columns=[*COLUMNS, *(name for name in frame.columns if name not in COLUMNS)])
    for name in ("milestone", "over_budget"):
        frame[name] = frame[name].eq(True)
    frame[NUMBERS] = frame[NUMBERS].astype(float)
    return frame


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is either the old one or the new one, whatever happens."""
    files.write_text(path, text)
