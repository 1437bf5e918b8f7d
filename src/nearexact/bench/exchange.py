"""Two methods with each other's hyperparameters: is it the model that predicts better, or the θ that it was trained to?

Each of the two gives its posterior at its own θ and at the other's. What changes with θ is the training's, what changes
with the method is the approximation's. The exact likelihood at both θ stands beside, where it can be computed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nearexact.bench import store
from nearexact.bench.exact_reference import ExactModel, ExactReference
from nearexact.bench.fidelity import CPU, EXACT, scores, task_of
from nearexact.bench.kept_models import Gaussian, KeptModel, SplitRuns, latent, rebuilt, runs_by_split
from nearexact.bench.protocol import Task
from nearexact.bench.store import RunFolder
from nearexact.gp import NumericalError
from nearexact.kernels.names import named_kernel
from nearexact.limits import memory_budget


@dataclass(frozen=True)
class Exchanged:
    """One method with the hyperparameters of one run. Numbers that could not be computed are NaN."""

    dataset: str
    seed: int
    method: str
    hyperparameters_of: str
    nlpd: float
    rmse: float
    crps: float
    exact_lml: float  # of the exact GP at these hyperparameters
    exact_lml_error: float  # its standard error: 0 by Cholesky
    test_points: int


def exchange(
    results: Path, first: str, second: str, *, memory_limit: int | float | str | None = None
) -> Iterator[Exchanged | str]:
    """Four rows for each split on which both methods, by their labels, have run; a sentence for each that has none."""
    found = False
    for (dataset, seed), runs in runs_by_split(results).items():
        by_method = {run.read()["spec"]["method"]: run for run in runs}
        if not {first, second} <= by_method.keys():
            continue
        found = True
        pair = [by_method[first], by_method[second]]
        try:
            yield from _exchange(dataset, seed, SplitRuns.of(dataset, seed, pair), pair, memory_limit)
        except (ValueError, MemoryError, NumericalError) as error:
            yield f"{dataset}, seed {seed}: {error}"
    if not found:
        raise ValueError(f"{results} has no split with runs of both {first!r} and {second!r}")


def write(results: Path, rows: list[Exchanged]) -> Path:
    """Keep the rows in the results folder, where the report looks for them."""
    path = results / store.EXCHANGE
    store.write_whole(path, json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return path


def _exchange(
    dataset: str, seed: int, split: SplitRuns, pair: list[RunFolder], memory_limit: int | float | str | None
) -> Iterator[Exchanged | str]:
    missing = [run for run in pair if run not in split.models]
    if missing:
        yield from (f"{run.path}: no predictions with hyperparameters are kept" for run in missing)
        return
    kernels = [split.models[run].kernel_name for run in pair]
    if kernels[0] != kernels[1]:
        yield f"{dataset}, seed {seed}: the kernels are {kernels[0]} and {kernels[1]}, whose hyperparameters differ"
        return
    free = memory_budget(memory_limit, CPU)
    reference = ExactReference(named_kernel(kernels[0]), split.data, free, seed)
    exact = {run: reference.at(split.models[run].kernel, split.models[run].noise_variance) for run in pair}
    task = task_of(dataset, seed, split, free)
    for run, other in itertools.product(pair, pair):
        try:
            prediction = _prediction(split, run, other, task, reference, exact[other])
        except NumericalError as error:
            yield f"{split.specs[run]['method']} with hyperparameters of {split.specs[other]['method']}: {error}"
            continue
        nlpd, rmse, crps = scores(reference.y_test, prediction)
        names = split.specs[run]["method"], split.specs[other]["method"]
        lml = exact[other].lml, exact[other].standard_error
        yield Exchanged(dataset, seed, *names, nlpd, rmse, crps, *lml, len(reference.y_test))


def _prediction(
    split: SplitRuns, run: RunFolder, other: RunFolder, task: Task, reference: ExactReference, exact: ExactModel
) -> Gaussian | None:
    """What a run's method predicts with another run's hyperparameters; None if it cannot compute that."""
    model: KeptModel = split.models[run]
    if run == other:
        return model.predictions.first(len(reference.y_test))
    if split.base(run) in EXACT:
        return exact.latent
    theta = split.models[other]
    posterior = rebuilt(split.specs[run], task, theta.kernel, theta.noise_variance, model.m)
    return None if posterior is None else latent(posterior, reference.X_test)
