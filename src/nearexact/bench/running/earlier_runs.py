"""What becomes of a run that was made before: it serves, or it is put aside and made again, or it is in the way.

A run serves unless something that it depends on has changed: the code of a plug-in, the file with the data, a longer
budget. Limits, threads and versions that differ are no reason to throw hours away, but are said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from nearexact.bench import datasets, store
from nearexact.bench.running import provenance
from nearexact.bench.store import RunSpec

SIDE_BY_SIDE = "give them labels of their own, as in sgpr{kernel=matern32}, or choose another output folder"
SAME_KEY = ("options", "device")  # settings that a run with this key has to have
LIMITS = ("hard_limit_seconds", "memory_limit", "threads", "evaluate_every")  # may differ


@dataclass(frozen=True)
class Decision:
    """Whether to make a run (again), and what a user should know about it."""

    make: bool
    note: str = ""


@dataclass(frozen=True)
class Present:
    """What a run would be made with now."""

    spec: RunSpec
    code: Mapping[str, Any] | None  # of the method, see `provenance.code_of`
    data: str | None  # checksum of the user's own file
    versions: Mapping[str, Any]
    commit: str | None = None  # of nearexact itself, if it is a checkout


class Surroundings:
    """What runs would be made with now; each method's code and each file of data is looked at once."""

    def __init__(self) -> None:
        self._versions, self._commit = provenance.versions(), provenance.own_commit().get("commit")
        self._code: dict[str, dict[str, Any] | None] = {}
        self._data: dict[str, str | None] = {}

    def of(self, spec: RunSpec) -> Present:
        """What a run of this spec would be made with."""
        reference = spec.reference or spec.method
        if reference not in self._code:
            self._code[reference] = provenance.code_of(reference)
        if spec.dataset not in self._data:
            self._data[spec.dataset] = datasets.checksum(spec.dataset)
        return Present(spec, self._code[reference], self._data[spec.dataset], self._versions, self._commit)


def decide(content: Mapping[str, Any], now: Present, *, retry_failed: bool) -> Decision:
    """What to do, given what run.json says of an earlier run. ValueError if that one is in the way."""
    status = content.get("status")
    if status not in store.ENDED_STATUSES:
        return Decision(make=True)
    old, new = content["spec"], json.loads(json.dumps(asdict(now.spec)))
    _check_same(old, new)
    reason = next(_reasons_to_repeat(content, now, old, new), None)
    if reason is not None:
        return Decision(make=True, note=f"{reason}: made again, the earlier run is kept aside")
    differing = [name for name in LIMITS if name in old and old.get(name) != new[name]]
    changes = ", ".join(_change(name, old, new) for name in differing)
    if status in store.FAILED_STATUSES and retry_failed:
        return Decision(make=True, note=f"tried again with other limits ({changes})" if changes else "")
    notes = [f"made with other limits ({changes}){_advice(status)}"] if changes else []
    if (old.get("budget_seconds") or 0.0) > new["budget_seconds"]:
        notes.append(f"made with a longer budget ({_change('budget_seconds', old, new)}), which serves")
    if others := _other_versions(content.get("versions") or {}, now.versions):
        notes.append(f"made with other versions ({others})")
    commit = content.get("git_commit")
    if commit and now.commit and commit != now.commit:
        notes.append(f"made with another commit of nearexact ({commit[:10]}, now {now.commit[:10]})")
    return Decision(make=False, note="; ".join(notes))


def _advice(status: str | None) -> str:
    return ", and failed: --retry-failed tries the new ones" if status in store.FAILED_STATUSES else ""


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """ValueError if the earlier run is one of something else under the same name."""
    changed = [_change(name, old, new) for name in SAME_KEY if name in old and old[name] != new[name]]
    if old.get("reference") and _class_of(old["reference"]) != _class_of(new["reference"]):
        changed.append(_change("reference", old, new))
    if changed:
        key = f"{new['dataset']}, {new['method']}, seed {new['seed']}"
        raise ValueError(f"there is a run of {key} with other settings ({', '.join(changed)}): {SIDE_BY_SIDE}")


def _class_of(reference: str | None) -> str:
    """A reference without folders, which may be moved."""
    return PurePath((reference or "").replace("\\", "/")).name


def _reasons_to_repeat(
    content: Mapping[str, Any], now: Present, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[str]:
    recorded = (content.get("code") or {}).get("sha256")
    if recorded and now.code and recorded != now.code["sha256"]:
        yield f"the code of {_class_of(new['reference'])} has changed"
    recorded = (content.get("data") or {}).get("sha256")
    if recorded and now.data and recorded != now.data:
        yield "the file with the data has changed"
    if (old.get("budget_seconds") or 0.0) < new["budget_seconds"]:
        yield f"the budget is longer ({_change('budget_seconds', old, new)})"


def _change(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return f"{name}: {old.get(name)!r}, now {new[name]!r}"


def _other_versions(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    changed = [name for name in new if name in old and old[name] != new[name]]
    return ", ".join(f"{name} {old[name]}, now {new[name]}" for name in changed)


def summarised(notes: Iterable[tuple[RunSpec, str]]) -> list[str]:
    """One line for each note, however many runs it is about."""
    by_note: dict[str, list[RunSpec]] = {}
    for spec, note in notes:
        by_note.setdefault(note, []).append(spec)
    return [f"{_runs(specs)}: {note}" for note, specs in by_note.items() if note]


def _runs(specs: list[RunSpec]) -> str:
    first = f"{specs[0].dataset} {specs[0].method} seed {specs[0].seed}"
    return first if len(specs) == 1 else f"{first} and {len(specs) - 1} more runs"
