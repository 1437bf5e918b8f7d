"""Training that goes on after a break: its state in a file, after each number of inducing points.

The file is JSON, and replaced only once the new one is complete. A fit that goes on gives the digits that it would have
given without the break, unless a time limit cuts it elsewhere.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearexact.files import check_output, write_text
from nearexact.gp.candidates import Candidate
from nearexact.gp.known_optimum import SubsetOptimum
from nearexact.gp.rounds import Round
from nearexact.gp.training import Training
from nearexact.persistence import describe, describe_stage, described_stage, plain_number

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor
    from nearexact.problem import Problem

FORMAT = "state of a training"
LIMITS = ("time_limit", "memory_limit", "device", "progress", "random_state")  # parameters that may differ
SAME = 1e-9  # relative difference between the scalings of the same data, summed in another order


def keep_state(estimator: Regressor, training: Any, problem: Problem, path: str | os.PathLike[str]) -> None:
    """Let the training write its state to a file, and go on from what is there already."""
    if not isinstance(training, Training):
        raise ValueError("resume is for sparse GPs: take SGPRegressor, or method='sparse'")
    path = check_output(path)
    identity = _identity(estimator, problem)
    if path.exists():
        _restore(training, _read(path, identity), path)

    def write() -> None:
        write_text(path, json.dumps({"format": FORMAT, **identity, **_state(training)}, default=plain_number))

    training.after_stage = write


def _identity(estimator: Regressor, problem: Problem) -> dict[str, Any]:
    """What must be the same for a fit to go on."""
    settings = {name: value for name, value in estimator.get_params(deep=False).items() if name not in LIMITS}
    kernel = settings["kernel"]
    settings["kernel"] = kernel if kernel is None or isinstance(kernel, str) else describe(kernel)
    scalings = [np.ravel(part).tolist() for s in (problem.scaling_X, problem.scaling_y) for part in (s.shift, s.scale)]
    row_noise = problem.row_noise
    if row_noise is not None:  # which may differ although all the above is the same
        scalings += [[float(part.mean()), float(part.std())] for part in (row_noise.factors, row_noise.known)]
    return {"estimator": type(estimator).__name__, "settings": settings, "rows": problem.data.n, "scalings": scalings}


def _state(training: Training) -> dict[str, Any]:
    best, search = training.best, training.search
    found: dict[str, Any] = (
        {}
        if search is None
        else {
            "candidates": [[c.theta.tolist(), c.likelihood] for c in search.candidates],
            "rounds": [asdict(r) for r in search.rounds],
            "sizes": search.sizes,
            "looked_everywhere": search.starts.has_looked_everywhere,
            "left_behind_a_rival": search.rivals.are_left_behind,
        }
    )
    return {
        "seed": training.seed,
        "random": training.random.bit_generator.state,
        "best": [best.rows.tolist(), best.theta.tolist(), best.objective],
        "search": found,
        "history": [describe_stage(stage) for stage in training.history],
    }


def _read(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The state in a file; a ValueError if it is none, or that of another fit."""
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']!r}")
        noted = {name: state[name] for name in identity}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} does not hold the state of a training: {error}") from error
    for name in ("estimator", "settings", "rows"):
        if noted[name] != json.loads(json.dumps(identity[name], default=plain_number)):
            raise ValueError(
                f"{str(path)!r} is the state of another fit, whose {name} are {noted[name]!r}, not {identity[name]!r}"
            )
    old, new = (np.concatenate(figures) for figures in (noted["scalings"], identity["scalings"]))
    if len(old) != len(new) or not np.allclose(old, new, rtol=SAME, atol=SAME):
        raise ValueError(
            f"{str(path)!r} is the state of a fit to other data: their means or deviations differ, or their known noise"
        )
    return state


def _round(fields: dict[str, Any]) -> Round:
    """What JSON has made lists of were tuples. Who agrees by what older states counted is not known."""
    kept: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    present = Round(**kept)
    return present if "agreeing" in kept else present.alone()


def _restore(training: Training, state: dict[str, Any], path: Path) -> None:
    try:
        rows, theta, objective = state["best"]
        best = Candidate(np.array(rows, dtype=np.int64), np.array(theta), float(objective))
        history = [described_stage(fields) for fields in state["history"]]
        search = training.search
        if search is not None:
            found = state["search"]
            search.candidates = [SubsetOptimum(np.array(at), float(value)) for at, value in found["candidates"]]
            search.rounds = [_round(fields) for fields in found["rounds"]]
            search.sizes = found["sizes"]  # another memory limit would make another subset
            # What an older state does not say was not looked at.
            search.doubt(
                looked_everywhere=found.get("looked_everywhere") is True,
                left_behind_a_rival=found.get("left_behind_a_rival") is not False,
            )
            search.random = np.random.default_rng(state["seed"])  # from which the subset is drawn
        training.seed = state["seed"]  # the next training that goes on draws the same
        training.random.bit_generator.state = state["random"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} does not hold the state of a training: {error}") from error
    training.go_on(best, history)
