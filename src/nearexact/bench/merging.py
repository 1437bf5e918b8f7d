"""Several results folders as one: copied together, or only looked at together."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearexact.bench import store
from nearexact.bench.store import RunFolder, RunStatus, as_name

PARTS = (store.TRACE, store.PREDICTIONS, store.LOG, store.RUN)  # run.json last: with it, the run is there


def merge(sources: Sequence[Path], out: Path) -> int:
    """Copy the runs of several results folders into one, which may hold runs already; how many are new in it.

    ValueError, before anything is copied, if two of them hold different runs of one method on one split, or if a name
    means different things in them. Of a run that has ended and one that has not, the first is taken. What lies aside
    in the folders stays there.
    """
    chosen = _chosen([*([out] if out.is_dir() else []), *sources])
    new = {place: run for place, run in chosen.items() if out not in run.path.parents}
    for place, run in new.items():
        RunFolder(out / place).start_over(run.read())
        for part in PARTS:
            if (run.path / part).is_dir():
                shutil.copytree(run.path / part, out / place / part)
            elif (run.path / part).exists():
                shutil.copy2(run.path / part, out / place / part)
    _add_plans_and_comparisons(sources, out)
    return len(new)


@contextmanager
def together(sources: Sequence[Path]) -> Iterator[Path]:
    """A folder that shows the runs of several ones while the context lasts; nothing is copied but their plans."""
    if len(sources) == 1:
        yield sources[0]
        return
    chosen = _chosen(sources)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, " + ".join(dict.fromkeys(source.resolve().name for source in sources))[:100])
        for place, run in chosen.items():
            (out / place).mkdir(parents=True)
            for part in PARTS:
                if (run.path / part).exists():
                    (out / place / part).symlink_to((run.path / part).resolve())
        _add_plans_and_comparisons(sources, out)
        yield out


def _chosen(folders: Sequence[Path]) -> dict[Path, RunFolder]:
    """The run for each place in a results folder."""
    chosen: dict[Path, RunFolder] = {}
    meanings: dict[tuple[str, str], tuple[object, Path]] = {}
    for run in (run for folder in folders for run in store.recorded_runs(folder)):
        content = run.read()
        if not content:
            warnings.warn(str(run.problem()), stacklevel=3)
            continue
        _check_meaning(content, run.path, meanings)
        spec = content["spec"]
        place = Path(as_name(spec["dataset"]), as_name(spec["method"]), f"seed-{spec['seed']}")
        chosen[place] = _better(chosen[place], run) if place in chosen else run
    return chosen


def _check_meaning(content: dict[str, Any], path: Path, meanings: dict[tuple[str, str], tuple[object, Path]]) -> None:
    """ValueError if a name of a data set or a method has meant something else in an earlier run."""
    spec, data = content["spec"], content.get("data") or {}
    reference = spec.get("reference")
    said = {
        ("data set", spec["dataset"]): data.get("sha256"),
        ("method", spec["method"]): reference
        and (Path(reference).name, json.dumps(spec.get("options"), sort_keys=True)),
    }
    for name, meaning in said.items():
        earlier, where = meanings.setdefault(name, (meaning, path)) if meaning else (None, path)
        if earlier != meaning:
            kind, text = name
            raise ValueError(f"the {kind} {text!r} is not the same in {where} and in {path}: rename one of them")


def _better(one: RunFolder, other: RunFolder) -> RunFolder:
    """The one that has ended, or either if they are the same; ValueError if they are different runs."""
    statuses = [run.status() for run in (one, other)]
    if RunStatus.RUNNING in statuses:
        raise ValueError(f"{one.path} or {other.path} is being written: wait until it has ended")
    if one.path.resolve() == other.path.resolve() or statuses[1] not in store.ENDED_STATUSES:
        return one
    if statuses[0] not in store.ENDED_STATUSES:
        return other
    if (one.read(), one.points()) != (other.read(), other.points()):
        raise ValueError(f"{one.path} and {other.path} are different runs of the same: take one of them away")
    return one


def _add_plans_and_comparisons(sources: Sequence[Path], out: Path) -> None:
    store.add_to_plan(out, [spec for source in sources for spec in store.planned(source)])
    folders = [*([out] if (out / store.FIDELITY).exists() else []), *sources]
    records = {
        tuple(record.get(name) for name in ("dataset", "method", "seed")): record
        for folder in reversed(folders)
        for record in store.read_fidelity(folder)
    }
    if records:
        store.write_whole(out / store.FIDELITY, json.dumps(list(records.values()), indent=1) + "\n")
