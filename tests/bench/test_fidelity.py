"""Fidelity: the figures by their definitions, and the cases that the paper tells apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from nearexact.bench import fidelity, methods, store
from nearexact.bench.datasets import load_split
from nearexact.bench.exact_reference import ExactReference
from nearexact.bench.exchange import Exchanged, exchange
from nearexact.bench.fidelity import Fidelity
from nearexact.bench.kept_models import Gaussian, last_model
from nearexact.bench.metrics import nlpd
from nearexact.bench.report.page import write_report
from nearexact.bench.running.clock import TrainingClock
from nearexact.bench.running.evaluator import Evaluator
from nearexact.bench.running.recorder import Recorder
from nearexact.bench.store import RunFolder, RunSpec, RunStatus
from nearexact.cli import main
from nearexact.gp import gpr_objective
from nearexact.gp.exact import exact_memory
from nearexact.kernels import Matern32, SquaredExponential
from nearexact.kernels.names import named_kernel
from tests.bench.helpers import task


def run_here(results: Path, method: str, dataset: str, **options: Any) -> RunFolder:
    """A run without a process of its own."""
    spec = RunSpec(dataset, method, 0, budget_seconds=600.0, hard_limit_seconds=600.0, options=options)
    folder, data = RunFolder(spec.folder(results)), load_split(dataset, 0)
    folder.prepare(spec)
    evaluator = Evaluator(folder, data.y_test, spec.budget_seconds)
    recorder = Recorder(evaluator, data.X_test, spec.budget_seconds, TrainingClock())
    methods.create(method, options).run(task(dataset), recorder)
    folder.update(status=RunStatus.FINISHED)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for method in ("gpr", "mean", "sgpr", "fitc"):
        run_here(folder, method, "heteroscedastic")
    return folder


def comparisons(results: Path) -> dict[str, Fidelity]:
    return {one.method: one for one in fidelity.compare(results) if isinstance(one, Fidelity)}


def test_fitc_predicts_better_than_the_exact_gp_and_is_no_approximation_of_it(results: Path) -> None:
    compared = comparisons(results)
    fitc, sgpr = compared["fitc"], compared["sgpr"]
    assert fitc.diagnosis == fidelity.UNFAITHFUL
    assert fitc.nlpd < fitc.nlpd_exact_at_exact - 0.1
    assert fitc.kl > 1.0
    assert sgpr.diagnosis == fidelity.FAITHFUL
    assert sgpr.kl < 0.01
    assert sgpr.nlpd == pytest.approx(sgpr.nlpd_exact_at_exact, abs=0.01)
    assert fitc.joint_kl > 10.0 * sgpr.joint_kl


def test_the_figures_are_those_of_their_definitions(results: Path) -> None:
    one = comparisons(results)["sgpr"]
    run = next(run for run in store.runs(results) if run.read()["spec"]["method"] == "sgpr")
    points = run.points()[0]
    last = points[-1]["info"]
    data = load_split("heteroscedastic", 0)
    kernel, noise = SquaredExponential(last["lengthscales"], last["variance"]), last["noise_variance"]
    exact = gpr_objective(kernel, noise, data.X_train, data.y_train).factorise(kernel, noise)
    with np.load(run.path / "predictions" / f"{len(points) - 1}.npz") as saved:
        mean, std = torch.tensor(saved["mean"]), torch.tensor(saved["variance"] - noise).sqrt()
    exact_mean, exact_variance = exact.predict(data.X_test)
    kl = kl_divergence(Normal(mean, std), Normal(exact_mean, exact_variance.sqrt())).mean()
    assert one.kl == pytest.approx(float(kl), rel=1e-6)
    assert one.lml == pytest.approx(exact.lml)
    distance = ((mean - exact_mean) ** 2 + (std - exact_variance.sqrt()) ** 2).sqrt().mean()
    assert one.wasserstein == pytest.approx(float(distance), rel=1e-6)
    assert one.nlpd == pytest.approx(points[-1]["nlpd"])
    assert one.rmse == pytest.approx(points[-1]["rmse"])


def test_without_a_run_of_gpr_the_exact_gp_is_trained(tmp_path: Path) -> None:
    run_here(tmp_path, "sgpr", "step", max_inducing=20)
    (one,) = fidelity.compare(tmp_path, time_limit=5.0)
    assert isinstance(one, Fidelity)
    assert one.lml_difference <= 0.01


def test_the_command_keeps_what_it_found(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fidelity", str(results)]) == 0
    assert "unfaithful" in capsys.readouterr().out
    records = json.loads((results / "fidelity.json").read_text())
    assert {record["method"] for record in records} == {"sgpr", "fitc"}


def test_what_cannot_be_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fidelity", str(tmp_path)]) == 2
    assert "nothing in" in capsys.readouterr().err
    run_here(tmp_path, "sgpr", "step", max_inducing=10)
    assert main(["bench", "fidelity", str(tmp_path), "--memory-limit", "10kB"]) == 2
    assert "the exact GP needs" in capsys.readouterr().err


SMALL = {"lengthscales": [0.15], "variance": 0.3, "noise_variance": 0.02}


def write_model(results: Path, method: str, dataset: str = "step", **theta: Any) -> RunFolder:
    """A run that kept one model: predictions of the exact GP at these hyperparameters."""
    spec = RunSpec(dataset, method, 0, budget_seconds=600.0, hard_limit_seconds=600.0)
    folder, data, theta = RunFolder(spec.folder(results)), load_split(dataset, 0), SMALL | theta
    folder.prepare(spec)
    kernel = named_kernel(theta.get("kernel", "se")).with_parameters(
        {k: theta[k] for k in ("lengthscales", "variance")}
    )
    mean, variance = ExactReference(kernel, data, 10**9, 0).at(kernel, theta["noise_variance"]).latent.of_observations
    folder.append({"elapsed": 1.0, "elbo": 0.0, "m": 20, "milestone": True, "info": theta})
    folder.save_predictions(0, mean, variance)
    folder.update(status=RunStatus.FINISHED)
    return folder


def test_conjugate_gradients_are_the_reference_where_cholesky_does_not_fit(tmp_path: Path) -> None:
    theta = {"lengthscales": [2.0] * 4 + [30.0] * 4, "variance": 5.0, "noise_variance": 0.05}
    data, kernel, noise = load_split("conformance", 0), SquaredExponential(theta["lengthscales"], 5.0), 0.05
    exact = ExactReference(kernel, data, 10**9, 0)
    iterative = ExactReference(kernel, data, int(0.9 * exact_memory(kernel, len(data.y_train))), 0)
    assert (exact.way, iterative.way) == ("cholesky", "iterative")
    expected, got = exact.at(kernel, noise), iterative.at(kernel, noise)
    assert got.lower <= expected.lml <= got.upper
    assert abs(got.lml - expected.lml) <= 4.0 * got.standard_error + 1e-3
    off = np.abs(got.latent.mean - expected.latent.mean[: len(got.latent.mean)])
    assert off.max() <= got.mean_error * math.sqrt(noise) + 1e-9
    np.testing.assert_allclose(got.latent.variance, expected.latent.variance[: len(off)], rtol=1e-5, atol=1e-9)
    with pytest.raises(MemoryError, match="the exact GP needs"):
        ExactReference(kernel, data, 10**4, 0)

    write_model(tmp_path, "gpr", "conformance", **theta)
    write_model(tmp_path, "svgp", "conformance", **theta)
    (by_cholesky,) = fidelity.compare(tmp_path)
    (by_gradients,) = fidelity.compare(tmp_path, memory_limit=iterative.memory)
    assert isinstance(by_cholesky, Fidelity)
    assert isinstance(by_gradients, Fidelity)
    assert (by_cholesky.reference, by_gradients.reference) == ("cholesky", "iterative")
    assert by_gradients.diagnosis == by_cholesky.diagnosis == fidelity.FAITHFUL
    assert by_gradients.crps_exact == pytest.approx(by_cholesky.crps_exact, rel=1e-4)
    assert by_gradients.kl_at_exact == pytest.approx(by_cholesky.kl_at_exact, rel=0.05, abs=1e-4)


def test_each_kernel_is_compared_with_its_own_exact_gp(tmp_path: Path) -> None:
    write_model(tmp_path, "gpr")
    write_model(tmp_path, "gpr{kernel=matern32}", kernel="matern32", noise_variance=0.1)
    write_model(tmp_path, "sgpr{kernel=matern32}", kernel="matern32", noise_variance=0.1)
    (one,) = fidelity.compare(tmp_path)
    assert isinstance(one, Fidelity)
    assert (one.method, one.kernel, one.lml_difference) == ("sgpr{kernel=matern32}", "matern32", 0.0)
    data, kernel = load_split("step", 0), Matern32([0.15], 0.3)
    assert one.lml == pytest.approx(gpr_objective(kernel, 0.1, data.X_train, data.y_train).factorise(kernel, 0.1).lml)


def test_a_difference_within_its_standard_error_is_none() -> None:
    assert fidelity.diagnose(0.0, -0.03, 1.0, 1.0) == fidelity.WORSE_OPTIMUM
    assert fidelity.diagnose(0.0, -0.03, 1.0, 1.0, standard_error=0.02) == fidelity.FAITHFUL


def test_two_methods_exchange_their_hyperparameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"lengthscales": [0.4], "noise_variance": 0.05}
    write_model(tmp_path, "sgpr")
    write_model(tmp_path, "gpr", **other)
    rows = [one for one in exchange(tmp_path, "sgpr", "gpr") if isinstance(one, Exchanged)]
    by_pair = {(row.method, row.hyperparameters_of): row for row in rows}
    assert len(by_pair) == 4
    data, kernel = load_split("step", 0), SquaredExponential([0.4], 0.3)
    exact = gpr_objective(kernel, 0.05, data.X_train, data.y_train).factorise(kernel, 0.05)
    sparse = methods.create("sgpr").at(task("step"), kernel, 0.05, 20)
    for method, posterior in (("gpr", exact), ("sgpr", sparse)):
        mean, variance = (np.asarray(part) for part in posterior.predict(data.X_test))
        assert by_pair[method, "gpr"].nlpd == pytest.approx(nlpd(data.y_test, mean, variance + 0.05), rel=1e-6)
        assert by_pair[method, "gpr"].exact_lml == pytest.approx(exact.lml)
    assert by_pair["gpr", "sgpr"].rmse == pytest.approx(by_pair["sgpr", "sgpr"].rmse)  # as this one was made
    assert main(["bench", "fidelity", str(tmp_path), "--exchange", "sgpr,gpr"]) == 0
    assert "with θ of" in capsys.readouterr().out
    page = tmp_path / "out"
    write_report(tmp_path, page, with_figures=False)
    assert "Exchanged hyperparameters" in (page / "report.html").read_text(encoding="utf-8")
    assert (page / "tables" / "exchange.csv").read_text().count("\n") == 5


@pytest.mark.parametrize(
    ("text", "words"), [("sgpr", "two methods"), ("sgpr,sgpr", "two methods"), ("sgpr,svgp", "both")]
)
def test_what_cannot_be_exchanged_is_said(text: str, words: str, tmp_path: Path, capsys: Any) -> None:
    write_model(tmp_path, "sgpr")
    assert main(["bench", "fidelity", str(tmp_path), "--exchange", text]) == 2
    assert words in capsys.readouterr().err


def test_hyperparameters_of_different_kernels_are_not_exchanged(tmp_path: Path) -> None:
    write_model(tmp_path, "sgpr")
    write_model(tmp_path, "gpr", kernel="matern32")
    (words,) = exchange(tmp_path, "sgpr", "gpr")
    assert "the kernels are se and matern32" in str(words)


@given(st.floats(-2.0, 2.0), st.floats(0.01, 10.0), st.floats(-2.0, 2.0), st.floats(0.01, 10.0))
def test_divergence_and_distance_are_those_of_gaussians(m_a: float, v_a: float, m_e: float, v_e: float) -> None:
    a, e = Gaussian(np.array([m_a]), np.array([v_a]), 0.1), Gaussian(np.array([m_e]), np.array([v_e]), 0.2)
    expected = kl_divergence(Normal(m_a, math.sqrt(v_a)), Normal(m_e, math.sqrt(v_e)))
    assert fidelity.marginal_kl(a, e) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
    assert fidelity.marginal_kl(a, a) == 0.0
    assert fidelity.marginal_wasserstein(a, e) ** 2 == pytest.approx(
        (m_a - m_e) ** 2 + v_a + v_e - 2.0 * math.sqrt(v_a * v_e), abs=1e-9
    )


@pytest.mark.parametrize(
    ("figures", "diagnosis"),
    [
        ((0.0, 0.0, 1.0, 1.0), fidelity.FAITHFUL),
        ((0.0, 0.5, 1.0, 1.0), fidelity.BETTER_OPTIMUM),
        ((0.0, -0.5, 1.0, 1.0), fidelity.WORSE_OPTIMUM),
        ((0.0, -0.5, 0.5, 1.0), fidelity.MISSPECIFIED),
        ((1.0, 0.0, 1.0, 1.0), fidelity.UNFAITHFUL),
        ((math.nan, 0.0, 1.0, 1.0), fidelity.UNFAITHFUL),
    ],
)
def test_every_case_has_its_words(figures: tuple[float, float, float, float], diagnosis: str) -> None:
    assert fidelity.diagnose(*figures) == diagnosis


def cut_short(folder: RunFolder, elbo: float) -> None:
    """Add what a budget may end with: the last model, with another likelihood, that is no milestone."""
    points = folder.points()[0]
    with np.load(folder.path / "predictions" / f"{len(points) - 1}.npz") as saved:
        folder.save_predictions(len(points), saved["mean"] + 5.0, saved["variance"])
    folder.append({**points[-1], "elbo": elbo, "milestone": False})


def test_a_budget_that_ends_in_a_restart_does_not_count(tmp_path: Path) -> None:
    folder = run_here(tmp_path, "sgpr", "step", max_inducing=20)
    milestone = last_model(folder, load_split("step", 0).X_test)
    assert milestone is not None
    cut_short(folder, elbo=milestone.elbo - 1000.0)
    assert last_model(folder, load_split("step", 0).X_test).elbo == milestone.elbo  # type: ignore[union-attr]
    cut_short(folder, elbo=milestone.elbo + 1.0)
    assert last_model(folder, load_split("step", 0).X_test).elbo == milestone.elbo + 1.0  # type: ignore[union-attr]


def test_an_exact_gp_that_was_cut_short_is_continued(tmp_path: Path) -> None:
    run_here(tmp_path, "sgpr", "step", max_inducing=50)
    run = run_here(tmp_path, "gpr", "step")
    points = run.points()[0]
    (run.path / "trace.jsonl").unlink()
    bad = {"lengthscales": [3.0], "variance": 1.0, "noise_variance": 0.5}
    run.append({**points[-1], "info": bad})
    run.save_predictions(0, np.zeros(30), np.ones(30))
    run.update(status=RunStatus.BUDGET)
    (one,) = fidelity.compare(tmp_path)
    assert isinstance(one, Fidelity)
    assert one.diagnosis == fidelity.FAITHFUL
    assert one.lml_at_exact == pytest.approx(points[-1]["elbo"], abs=1.0)


def test_a_plugin_that_fails_does_not_end_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from nearexact.bench.methods.gpr import GPR\n\n"
        "class Bad(GPR):\n    name = 'bad'\n    def at(self, task, kernel, noise_variance, m):\n        1 + 'x'\n"
    )
    results = tmp_path / "results"
    run_here(results, f"{tmp_path / 'bad.py'}:Bad", "step")
    run_here(results, "sgpr", "step", max_inducing=20)
    bad, good = sorted(fidelity.compare(results), key=lambda one: isinstance(one, Fidelity))
    assert "TypeError" in str(bad)
    assert isinstance(good, Fidelity)
