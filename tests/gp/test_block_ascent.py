"""Climbs on the likelihood of rows in blocks: where these tell what the exact one does, they see what subsets miss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nearexact.gp import block_ascent, gpr_objective, iterative_training
from nearexact.gp.block_ascent import block_likelihood, climbed_in_blocks
from nearexact.gp.iterative import IterativeObjective
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.gp.known_optimum import KnownOptimum
from nearexact.gp.safety import NumericalError
from nearexact.gp.search import Search
from nearexact.kernels import Kernel, Matern12, SquaredExponential
from nearexact.typing import FloatArray
from tests.problems import standardised

ROWS = block_ascent.FEWEST_ROWS


def in_groups(n: int = ROWS) -> tuple[FloatArray, FloatArray]:
    """A trend in one input, and a level of its own for each of many equal values of the other."""
    rng = np.random.default_rng(0)
    names = np.linspace(-1.7, 1.7, n // 16)
    groups = rng.integers(len(names), size=n)
    X = np.column_stack([rng.normal(size=n), names[groups]])
    y = np.sin(X[:, 0]) + rng.normal(size=len(names))[groups] + 0.1 * rng.normal(size=n)
    return X, (y - y.mean()) / y.std()


def search_of(data: tuple[FloatArray, FloatArray], kernel: Kernel | None = None, **options: Any) -> Search:
    return Search(kernel or SquaredExponential(), *data, **options)


def exact(search: Search, theta: FloatArray, data: tuple[FloatArray, FloatArray]) -> float:
    kernel, noise = search.layout.unpack(theta)
    return gpr_objective(kernel, noise, *data).factorise(kernel, noise).lml


def smooth_start(search: Search) -> FloatArray:
    """One that explains the levels by noise."""
    return search.layout.pack(SquaredExponential([1.0, 2.0]), 0.3)


@pytest.fixture(scope="module")
def groups() -> tuple[FloatArray, FloatArray]:
    return in_groups()


def test_it_finds_what_few_rows_do_not_show(groups: tuple[FloatArray, FloatArray]) -> None:
    search = search_of(groups)
    start = smooth_start(search)
    optimum = climbed_in_blocks(search, start, 1e9)
    assert optimum is not None
    assert optimum.is_nearly_exact
    assert search.flops > 0.0
    reached = exact(search, optimum.theta, groups)
    assert block_likelihood(search, optimum.theta) == pytest.approx(optimum.likelihood)
    assert optimum.gain == pytest.approx(reached - exact(search, start, groups), abs=0.05 * ROWS)
    assert reached == pytest.approx(optimum.likelihood, abs=block_ascent.LOOSE * ROWS)
    assert reached > exact(search, start, groups) + 0.1 * ROWS
    assert search.layout.unpack(optimum.theta)[0].parameters["lengthscales"][1] < 0.1


def test_rows_in_blocks_do_not_claim_to_know_smooth_functions() -> None:
    """Rows far away say much about a smooth one, and few of them are given."""
    X = np.random.default_rng(0).uniform(-2.0, 2.0, size=(ROWS, 6))
    y = np.sin(X.sum(1)) + 0.05 * np.random.default_rng(1).normal(size=ROWS)
    search = search_of((X, (y - y.mean()) / y.std()))
    start = search.layout.pack(SquaredExponential(np.full(6, 2.0)), 0.05)
    optimum = climbed_in_blocks(search, start, 1e9)
    assert optimum is None or not optimum.is_nearly_exact


def test_near_a_known_optimum_it_ends(groups: tuple[FloatArray, FloatArray]) -> None:
    whole, known = search_of(groups), search_of(groups)
    optimum = climbed_in_blocks(whole, smooth_start(whole), 1e9)
    assert optimum is not None
    top = KnownOptimum(known.layout, optimum.theta, optimum.likelihood, ROWS, np.eye(4))
    again = climbed_in_blocks(known, smooth_start(known), 1e9, top=top)
    assert again is not None
    assert known.flops < 0.9 * whole.flops
    assert exact(known, again.theta, groups) >= exact(known, optimum.theta, groups) - 0.02 * ROWS


@pytest.mark.parametrize("options", [{"memory": 10**6}, {"rows": ROWS - 1}, {"seconds": 0.0}])
def test_where_there_is_no_room_or_time_nothing_is_found(options: dict[str, Any]) -> None:
    data = standardised(options.get("rows", ROWS))
    search = search_of(data, Matern12(), memory=options.get("memory"))
    assert climbed_in_blocks(search, search.theta0, options.get("seconds", 1e9)) is None


def test_training_starts_from_where_blocks_lead(
    groups: tuple[FloatArray, FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a search: few exact evaluations are then enough."""
    monkeypatch.setattr(Search, "run", lambda search: None)
    start = (SquaredExponential([1.0, 2.0]), 0.3)
    training = IterativeTraining(SquaredExponential(), *groups, start=start, seed=0)
    training.run()
    assert training._plan.blocks_tell
    assert training.posterior().kernel.parameters["lengthscales"][1] < 0.1
    assert training.history[0].evaluations < 15
    assert training._leader is not None
    assert training._leader.is_settled


def test_where_nothing_can_be_evaluated_there_training_goes_on_from_the_search(
    groups: tuple[FloatArray, FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "run", lambda search: None)
    evaluate = IterativeObjective.evaluate

    def fails_where_rough(objective: IterativeObjective, kernel: Kernel, noise_variance: float) -> Any:
        if kernel.parameters["lengthscales"][1] < 0.1:
            raise NumericalError("as if conjugate gradients did not converge")
        return evaluate(objective, kernel, noise_variance)

    monkeypatch.setattr(IterativeObjective, "evaluate", fails_where_rough)
    start = (SquaredExponential([1.0, 2.0]), 0.3)
    training = IterativeTraining(SquaredExponential(), *groups, start=start, seed=0)
    training.run()
    assert training.estimate() is not None
    assert training.posterior().kernel.parameters["lengthscales"][1] >= 0.1
    assert not training._plan.blocks_tell
    evidence = training.evidence()
    assert evidence is not None
    assert evidence.gain_per_row is None


@pytest.mark.parametrize("claimed", [1.0, -1.0])
def test_the_exact_likelihood_has_the_last_word(
    groups: tuple[FloatArray, FloatArray], monkeypatch: pytest.MonkeyPatch, claimed: float
) -> None:
    """If blocks were a nat per row off at the optimum, no other start would be climbed from on them."""
    monkeypatch.setattr(Search, "run", lambda search: None)

    def off(search: Search, theta: FloatArray) -> float:
        return block_ascent.block_likelihood(search, theta) + claimed * ROWS

    monkeypatch.setattr(iterative_training, "block_likelihood", off)
    start = (SquaredExponential([1.0, 2.0]), 0.3)
    training = IterativeTraining(SquaredExponential(), *groups, start=start, seed=0)
    training.run()
    assert training._has_moved
    assert not training._plan.blocks_tell
