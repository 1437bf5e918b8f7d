"""Verdicts on runs and data sets, and the paper's own list from its own table."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearexact.bench.analysis import published, results, verdicts
from nearexact.bench.analysis.hyperparameters import NOBODY_LOOKED, recorded_evidence
from nearexact.bench.analysis.results import Size
from nearexact.bench.store import RunStatus
from nearexact.certificate import Estimate, confirm, judge, judge_estimate
from nearexact.evidence import CERTIFIED_GAP, FEWEST_AGREEING, Evidence
from tests.bench.synthetic import (
    NOISE,
    N,
    as_results,
    constant_trace,
    curve_trace,
    evidence,
    points,
    sgpr_trace,
    write_results,
    write_run,
)


def test_the_published_table_gives_the_papers_list() -> None:
    verdicts = published.verdicts()
    assert len(verdicts) == 12
    near = {name for name, verdict in verdicts.items() if verdict in ("certified", "converged")}
    assert near == {"elevators", "keggdirected", "keggundirected", "naval", "skillcraft"}
    assert {name for name, verdict in verdicts.items() if verdict == "no better than noise"} == {"tamielectric"}


def test_the_published_linear_model_does_as_well_on_skillcraft_only() -> None:
    table = published.load()
    final = table[(table["metric"] == "negative_lml") & (table["checkpoint"] == "final")]
    losses = final.set_index(["dataset", "method"])["value"]
    sizes = dict(zip(final["dataset"], final["n_train"], strict=True))
    near = [name for name, verdict in published.verdicts().items() if verdict == "converged"]
    answers = {
        name: verdicts.linear_as_good(losses[name, "sgpr-paper"], losses[name, "linear"], Size(sizes[name], 1))
        for name in near
    }
    assert {name for name, answer in answers.items() if answer == "yes"} == {"skillcraft"}


def verdicts_by_run(folder: Path) -> dict[tuple[str, int], tuple[str, float, float]]:
    judged = verdicts.run_verdicts(results.read(folder))
    return {(row.method, row.seed): (row.verdict, row.m, row.seconds) for row in judged.itertuples()}


def test_sgpr_is_judged_by_its_bounds_and_the_m_at_which_they_met_is_told(tmp_path: Path) -> None:
    trace = sgpr_trace(0)
    write_run(tmp_path, "a", "sgpr", 0, trace)
    verdict, m, seconds = verdicts_by_run(tmp_path)["sgpr", 0]
    assert verdict == "certified"
    ends = [point for point in trace if point["milestone"]]
    first = next(p for p in ends if p["upper_bound"] - p["elbo"] < 0.01 * N)
    assert (m, seconds) == (first["m"], pytest.approx(first["elapsed"]))
    assert first is ends[-1]


def test_a_lower_bound_above_the_elbo_certifies_earlier(tmp_path: Path) -> None:
    """The gap is that of the best bounds; steps up in M are those of the ELBO."""
    trace = sgpr_trace(0)
    ends = [point for point in trace if point["milestone"]]
    ends[-2]["upper_bound"] = ends[-2]["elbo"] + 0.011 * N
    for point in ends:
        point["info"]["lower_bound"] = point["upper_bound"] - 0.005 * N if point is ends[-2] else point["elbo"]
    write_run(tmp_path, "a", "sgpr", 0, trace)
    assert verdicts_by_run(tmp_path)["sgpr", 0][:2] == ("certified", ends[-2]["m"])
    ends[-1]["info"]["lower_bound"] = ends[-1]["upper_bound"] - 0.002 * N
    write_run(tmp_path / "b", "a", "sgpr", 0, trace)
    (gap,) = verdicts.run_verdicts(results.read(tmp_path / "b"))["gap_per_point"]
    assert gap == pytest.approx(0.002)


def test_sgpr_converges_without_an_upper_bound_if_two_steps_changed_nothing(tmp_path: Path) -> None:
    trace = [{k: v for k, v in point.items() if k != "upper_bound"} for point in sgpr_trace(0)]
    write_run(tmp_path, "a", "sgpr", 0, trace)  # the last steps are 4.7 and 1.2 nats, 0.2 % are 3.4
    assert verdicts_by_run(tmp_path)["sgpr", 0][0] == "not reached"
    for point in trace[-8:]:
        point["elbo"] = trace[-9]["elbo"] + 1.0
    write_run(tmp_path / "b", "a", "sgpr", 0, trace)
    assert verdicts_by_run(tmp_path / "b")["sgpr", 0][:2] == ("converged", 500.0)


def test_a_stage_that_gained_nothing_is_no_step(tmp_path: Path) -> None:
    trace = sgpr_trace(0, stages=3)
    for point in trace:
        point.pop("upper_bound", None)
    last = [point for point in trace if point["milestone"]][-1]
    for k in range(2):
        info = {"scheduled_m": 100 * (k + 1), "stopped": "no better than a smaller M"}
        trace.append({**last, "elapsed": 50.0 + k, "info": info})
    write_run(tmp_path, "a", "sgpr", 0, trace)
    assert verdicts_by_run(tmp_path)["sgpr", 0][0] == "not reached"


def test_others_are_compared_with_the_best_near_exact_value_on_the_same_split(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "gpr", 0, curve_trace(0, final=300.0, exact=True))
    for name, final in (("near", 305.0), ("above", 330.0), ("below", 270.0)):
        write_run(tmp_path, "a", name, 0, curve_trace(0, final=final))
    write_run(tmp_path, "a", "near", 1, curve_trace(0, final=300.0))  # nothing near-exact on this split
    write_run(tmp_path, "a", "noise", 0, constant_trace(NOISE + 4.0, 1.0, 1.4))
    write_run(tmp_path, "a", "linear", 0, constant_trace(300.0, 0.3, 0.4))
    judged = verdicts_by_run(tmp_path)
    assert judged["gpr", 0][0] == "exact"
    assert judged["near", 0][0] == "converged"
    assert {judged["above", 0][0], judged["below", 0][0], judged["near", 1][0]} == {"not reached"}
    assert judged["noise", 0][0] == "no better than noise"
    assert judged["linear", 0][0] == "baseline"
    words = verdicts.run_verdicts(results.read(tmp_path)).set_index(["method", "seed"])["hyperparameters"]
    assert words["near", 0] == "same value as gpr"
    assert words["above", 0] == words["below", 0] == "another value than gpr"
    assert words["near", 1] == "not compared with others"
    goal = curve_trace(0, final=300.0)[-1]["elbo"]
    trace = curve_trace(0, final=305.0)
    first = next(k for k in range(20) if all(abs(p["elbo"] - goal) <= 0.01 * N for p in trace[k:]))
    assert judged["near", 0][2] == pytest.approx(trace[first]["elapsed"])


def exact_run(times: list[float], lmls: list[float]) -> list[dict[str, float]]:
    point = constant_trace(0.0, 0.5, 0.5)[0] | {"milestone": False}
    return [point | {"elapsed": t, "elbo": e, "upper_bound": e} for t, e in zip(times, lmls, strict=True)]


def test_an_exact_gp_that_was_cut_short_must_have_stopped_changing(tmp_path: Path) -> None:
    """0.2 % of the distance to the constant predictor are 3.4 nats at an LML of 300."""
    times = [1.0, 3.0, 5.0, 7.0, 9.0]  # thirds end at the second, third and fifth
    still, changing = [0.0, 297.0, 299.0, 280.0, 300.0], [0.0, 295.0, 299.0, 299.0, 300.0]
    write_run(tmp_path, "still", "gpr", 0, exact_run(times, still), RunStatus.BUDGET)
    write_run(tmp_path, "changing", "gpr", 0, exact_run(times, changing), RunStatus.BUDGET)
    write_run(tmp_path, "alone", "gpr", 0, exact_run(times, changing))  # finished, but with nobody who agrees
    write_run(tmp_path, "sparse", "gpr", 0, exact_run([1.0, 8.0, 9.0], [300.0] * 3), RunStatus.BUDGET)  # an empty third
    write_run(tmp_path, "noise", "gpr", 0, exact_run(times, [NOISE + 1.0] * 5))
    write_run(tmp_path, "noise", "other", 0, constant_trace(NOISE + 9.0, 1.0, 1.4))  # as near to it as can be
    write_run(tmp_path, "compared", "gpr", 0, exact_run(times, changing), RunStatus.BUDGET)
    write_run(tmp_path, "compared", "sgpr", 0, sgpr_trace(0, final=305.0))
    write_run(tmp_path, "below", "gpr", 0, exact_run(times, changing), RunStatus.KILLED)
    write_run(tmp_path, "below", "sgpr", 0, sgpr_trace(0, final=400.0), RunStatus.BUDGET)
    for dataset in ("still", "changing"):  # has an exact value to be compared with, or not
        write_run(tmp_path, dataset, "other", 0, curve_trace(0, final=301.0))
    judged = verdicts.run_verdicts(results.read(tmp_path)).set_index(["dataset", "method"])
    assert judged["verdict"].xs("gpr", level="method").to_dict() == {
        "still": "converged", "changing": "not reached", "alone": "not reached", "sparse": "not reached",
        "noise": "no better than noise", "compared": "converged", "below": "not reached",
    }  # fmt: skip
    assert judged.loc[("alone", "gpr"), "basis"] == f"{NOBODY_LOOKED}; converged at its own"
    assert judged.loc[("still", "gpr"), "hyperparameters"] == "same value as other"
    assert judged.loc[("changing", "gpr"), "basis"] == "training was cut short"
    assert judged.loc[("compared", "gpr"), "basis"] == "the best near-exact value"
    assert judged.loc[("below", "gpr"), "basis"].startswith("training was cut short; 0.1 nats per point below")
    assert judged.loc[("below", "sgpr"), "verdict"] == "certified"  # by bounds that had to meet
    assert math.isnan(judged.loc[("changing", "gpr"), "seconds"])
    assert judged.loc[("still", "gpr"), "seconds"] == pytest.approx(3.0)  # a dip is another start: the model is kept
    assert judged["verdict"].xs("other", level="method").to_dict() == {
        "still": "converged", "changing": "not reached", "noise": "not reached"
    }  # fmt: skip


def judged_by(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Verdict, words on the hyperparameters and basis of each method's run on a single split."""
    judged = verdicts.run_verdicts(results.read(folder))
    return {row.method: (row.verdict, row.hyperparameters, row.basis) for row in judged.itertuples()}


@pytest.mark.parametrize(
    ("search", "words", "doubt"),
    [
        (evidence(agreeing=1), "1 of 9 starts agree on 500 rows, 0.001 nats per row left", "do not agree"),
        (evidence(gain=0.2), "5 of 9 starts agree on 500 rows, 0.2 nats per row left", "has found better ones"),
        (evidence(gain=1e-12, agreeing=0), "0 of 9 starts agree on 500 rows, 0 nats per row left", "do not agree"),
        (evidence(gain=math.nan), "5 of 9 starts agree on 500 rows, not all followed to their end", "no time"),
        (evidence(rows=N, gain=0.0, likelihood=320.0), "5 of 9 starts agree, 0 nats per row left", "better ones"),
    ],
)
def test_bounds_that_meet_are_not_enough(search: dict[str, float], words: str, doubt: str, tmp_path: Path) -> None:
    write_run(tmp_path, "a", "sgpr", 0, sgpr_trace(0, search=search))
    verdict, shown, basis = judged_by(tmp_path)["sgpr"]
    assert (verdict, shown) == ("not reached", words)
    assert basis.startswith("certified at its own, but ")
    assert doubt in basis


@settings(max_examples=40)
@given(st.integers(1, 2 * N), st.integers(0, 12), st.floats(0.0, 0.02) | st.just(math.nan), st.floats(-50.0, 50.0))
def test_a_run_with_evidence_is_judged_as_an_estimator_is(rows: int, agreeing: int, gain: float, higher: float) -> None:
    """At one milestone of an exact GP and of a sparse one, for whatever a search may have found."""
    lml, starts = 300.0, 12
    found = Evidence(rows, starts, agreeing, gain, lml + higher)
    recorded = {"evidence_rows": rows, "evidence_starts": starts, "evidence_agreeing": agreeing}
    recorded |= {"evidence_gain_per_row": gain, "evidence_likelihood": lml + higher}
    point = {"milestone": True, "elapsed": 1.0, "elbo": lml, **recorded}
    table = points([
        point | {"method": "sgpr", "upper_bound": lml + 0.004 * N, "m": 10, "scheduled_m": 10},
        point | {"method": "gpr", "upper_bound": lml},
    ])  # fmt: skip
    judged = verdicts.run_verdicts(as_results(table)).set_index("method")["verdict"]
    expected = confirm(judge(lml, lml + 0.004 * N, [lml], NOISE, N, parameters=4), lml, N, found)
    assert judged["sgpr"] == expected
    assert judged["gpr"] == ("exact" if expected == "certified" else expected)


@settings(max_examples=40)
@given(st.floats(0.0, 0.005 * N), st.floats(0.0, 0.02), st.integers(0, 3), st.floats(0.0, 0.02))
def test_an_estimate_is_judged_as_the_estimator_judges_its_own(
    error: float, mean_error: float, agreeing: int, gain: float
) -> None:
    """Whether it is recorded as `elbo` or beside a proved bound; the proved bounds alone are too far apart."""
    value, lower, upper = 300.0, 200.0, 320.0
    found = Evidence(N, 9, agreeing, gain, value)
    point = {"milestone": True, "elapsed": 1.0, "lower_bound": lower, "upper_bound": upper, "standard_error": error}
    point |= {"mean_error": mean_error, **evidence(rows=N, agreeing=agreeing, gain=gain, likelihood=value)}
    table = points([
        point | {"method": "gpr-iterative", "elbo": value},
        point | {"method": "nearexact", "elbo": lower, "estimate": value},
    ])  # fmt: skip
    judged = verdicts.run_verdicts(as_results(table)).set_index("method")
    expected = judge_estimate(Estimate(value, error), NOISE, N, found, mean_error)
    assert judged["verdict"].to_dict() == {"gpr-iterative": expected, "nearexact": expected}
    assert judged["gap_per_point"].to_list() == [(upper - lower) / N] * 2  # what is proved


def test_an_estimate_proves_nothing() -> None:
    """Not even next to a proved upper bound, and not against others."""
    point = {"milestone": True, "elapsed": 1.0, "upper_bound": 301.0, "standard_error": 50.0, "mean_error": 0.0}
    point |= {"lower_bound": 100.0, **evidence(rows=N, gain=0.0, likelihood=300.0)}
    table = points([
        point | {"method": "gpr-iterative", "elbo": 300.0},
        {"milestone": True, "elapsed": 1.0, "method": "gpr", "elbo": 250.0, "upper_bound": 250.0}
        | evidence(rows=N, gain=0.0, likelihood=250.0),
    ])  # fmt: skip
    judged = verdicts.run_verdicts(as_results(table)).set_index("method")["verdict"]
    assert judged.to_dict() == {"gpr-iterative": "not reached", "gpr": "exact"}


def test_what_cannot_be_evidence_is_none() -> None:
    sound = evidence()
    assert recorded_evidence(sound) == Evidence(500, 9, 5, 0.001, 0.0)
    assert recorded_evidence(sound | {"evidence_price": 2.0}) == Evidence(500, 9, 5, 0.001, 0.0, 2.0)
    for damaged in ({"evidence_rows": math.nan}, {"evidence_agreeing": 10}, {"evidence_starts": math.inf}):
        assert recorded_evidence(sound | damaged) is None


def test_a_value_that_another_run_proves_speaks_against_everyone_below(tmp_path: Path) -> None:
    """The smooth optimum: its bounds meet and its search saw nothing, but elsewhere the likelihood is higher."""
    write_run(tmp_path, "a", "sgpr", 0, sgpr_trace(0, final=300.0))
    write_run(tmp_path, "a", "sgpr-paper", 0, sgpr_trace(0, final=300.0, search={}))
    write_run(tmp_path, "a", "itergp", 0, curve_trace(0, final=300.0))
    write_run(tmp_path, "a", "sgpr", 1, sgpr_trace(0, final=300.0))
    assert judged_by(tmp_path)["itergp"][0] == "converged"
    better = [point | {"upper_bound": point["elbo"] + 500.0} for point in curve_trace(0, final=330.0)]
    write_run(tmp_path, "a", "svgp", 0, better, RunStatus.ERROR)  # a lower bound is one, whatever comes of the run
    judged = verdicts.run_verdicts(results.read(tmp_path)).set_index(["method", "seed"])
    for method in ("sgpr", "sgpr-paper", "itergp"):
        assert judged.loc[(method, 0), "verdict"] == "not reached"
        basis = judged.loc[(method, 0), "basis"]
        assert re.fullmatch(r"another run proves 0\.0\d+ nats per point more \(svgp\)", basis)
    assert judged.loc[("sgpr", 1), "verdict"] == "certified"  # another split


@pytest.mark.parametrize("more", [0.9 * CERTIFIED_GAP, 1.1 * CERTIFIED_GAP])
def test_only_proofs_count_and_only_if_they_are_of_more_than_a_certified_gap(more: float, tmp_path: Path) -> None:
    write_run(tmp_path, "a", "sgpr", 0, sgpr_trace(0))
    reached = sgpr_trace(0)[-1]["elbo"]
    write_run(tmp_path, "a", "itergp", 0, constant_trace(900.0, 0.3, 0.4))  # an estimate
    write_run(tmp_path, "a", "linear", 0, constant_trace(900.0, 0.3, 0.4))  # another model
    assert judged_by(tmp_path)["sgpr"][0] == "certified"
    broken = constant_trace(reached + 50.0, 0.3, 0.4)[0] | {"upper_bound": reached, "m": 10}
    write_run(tmp_path, "a", "sgpr-tight", 0, [broken])  # bounds out of order
    assert judged_by(tmp_path)["sgpr"][0] == "certified"
    exact = constant_trace(900.0, 0.3, 0.4)[0] | {"info": {"exact_lml": reached + more * N}}
    write_run(tmp_path / "b", "a", "sgpr", 0, sgpr_trace(0))
    write_run(tmp_path / "b", "a", "itergp", 0, [exact])  # an estimate, with the exact value beside it
    assert judged_by(tmp_path / "b")["sgpr"][0] == ("certified" if more < CERTIFIED_GAP else "not reached")


def test_without_evidence_somebody_must_have_looked(tmp_path: Path) -> None:
    plain = sgpr_trace(0, search={})
    write_run(tmp_path / "alone", "a", "sgpr-paper", 0, plain)
    write_run(tmp_path / "alone", "a", "sgpr-tight", 0, plain)  # no evidence either
    alone = judged_by(tmp_path / "alone")
    assert alone["sgpr-paper"] == (
        "not reached", "not compared with others", f"{NOBODY_LOOKED}; certified at its own"
    )  # fmt: skip
    write_run(tmp_path / "searched", "a", "sgpr-paper", 0, plain)
    write_run(tmp_path / "searched", "a", "sgpr", 0, sgpr_trace(0))
    assert judged_by(tmp_path / "searched")["sgpr-paper"][:2] == ("certified", "same value as sgpr")
    write_run(tmp_path / "trained", "a", "sgpr-paper", 0, plain)
    old = [{**point, "info": {}} for point in curve_trace(0, final=300.0, exact=True)]
    write_run(tmp_path / "trained", "a", "gpr", 0, old)
    trained = judged_by(tmp_path / "trained")
    assert trained["sgpr-paper"][:2] == ("certified", "same value as gpr")
    assert trained["gpr"][:2] == ("converged", "same value as sgpr-paper")
    write_run(tmp_path / "doubted", "a", "sgpr-paper", 0, plain)
    write_run(tmp_path / "doubted", "a", "sgpr", 0, sgpr_trace(0, search=evidence(agreeing=FEWEST_AGREEING - 1)))
    assert {verdict for verdict, _, _ in judged_by(tmp_path / "doubted").values()} == {"not reached"}


def test_near_exactness_counts_from_where_nothing_was_proved_against_it(tmp_path: Path) -> None:
    """Bounds that met early, at hyperparameters that were left later for better ones."""
    trace = sgpr_trace(0)
    ends = [point for point in trace if point["milestone"]]
    ends[1] |= {"upper_bound": ends[1]["elbo"] + 0.001 * N}
    for point in ends[2:]:
        point["upper_bound"] = point["elbo"] + 0.001 * N
    write_run(tmp_path, "a", "sgpr", 0, trace)
    verdict, m, _ = verdicts_by_run(tmp_path)["sgpr", 0]
    best = ends[-1]["elbo"]
    assert (verdict, m) == ("certified", next(p["m"] for p in ends if best - p["elbo"] <= CERTIFIED_GAP * N))
    assert m > ends[1]["m"]


def test_the_estimator_is_judged_by_the_way_it_went(tmp_path: Path) -> None:
    write_run(tmp_path, "exact", "nearexact", 0, curve_trace(0, final=300.0, exact=True))
    write_run(tmp_path, "sparse", "nearexact", 0, sgpr_trace(0))
    write_run(tmp_path, "short", "nearexact", 0, sgpr_trace(0)[:2], RunStatus.BUDGET)
    judged = verdicts.run_verdicts(results.read(tmp_path)).set_index("dataset")
    assert judged["verdict"].to_dict() == {"exact": "exact", "sparse": "certified", "short": "not reached"}
    assert judged.loc["sparse", "m"] == 500
    assert judged.loc["short", "basis"] == "no M was done"
    content = results.read(tmp_path)
    counts = verdicts.near_exact_counts(content, verdicts.near_exactness(content), verdicts.run_verdicts(content)).iloc[
        0
    ]
    assert (counts["near_exact"], counts["exact"], counts["certified"], counts["not_reached"]) == (2, 1, 1, 1)


def test_a_model_that_has_hardly_begun_is_not_called_noise(tmp_path: Path) -> None:
    early = [{**point, "elbo": NOISE - 50.0 + k} for k, point in enumerate(curve_trace(0, final=300.0)[:3])]
    write_run(tmp_path, "a", "gpr", 0, early, RunStatus.BUDGET)
    still = [{**point, "elbo": NOISE + 0.01} for point in curve_trace(0, final=300.0)]
    write_run(tmp_path, "a", "svgp", 0, still, RunStatus.BUDGET)
    write_run(tmp_path, "a", "itergp", 0, early, RunStatus.FINISHED)
    stages = [{**point, "elbo": NOISE - 1.0} for point in sgpr_trace(0) if point["milestone"]]
    write_run(tmp_path, "a", "sgpr", 0, stages[:2], RunStatus.BUDGET)
    write_run(tmp_path, "b", "sgpr", 0, stages[:3], RunStatus.BUDGET)
    write_run(tmp_path, "c", "sgpr", 0, stages[:1], RunStatus.FINISHED)
    judged = verdicts.run_verdicts(results.read(tmp_path)).set_index(["dataset", "method"])
    assert judged["verdict"].to_dict() == {
        ("a", "gpr"): "not reached", ("a", "svgp"): "no better than noise", ("a", "itergp"): "no better than noise",
        ("a", "sgpr"): "not reached", ("b", "sgpr"): "no better than noise", ("c", "sgpr"): "no better than noise",
    }  # fmt: skip
    assert judged.loc[("a", "gpr"), "basis"] == judged.loc[("a", "sgpr"), "basis"] == "it had hardly begun to train"


def test_runs_without_a_result_say_so(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "sgpr", 0, [], RunStatus.KILLED, "too long")
    write_run(tmp_path, "a", "sgpr", 1, sgpr_trace(1)[:2], RunStatus.KILLED, "too long")
    write_run(tmp_path, "a", "other", 0, constant_trace(math.nan, 1.0, 1.0))
    write_run(tmp_path, "b.csv:y", "sgpr", 0, sgpr_trace(0), n=None)  # nobody knows how large it is
    judged = verdicts.run_verdicts(results.read(tmp_path))
    assert judged["verdict"].tolist() == ["no result", "no result", "not reached", "no result"]
    assert judged["method"].tolist() == ["other", "sgpr", "sgpr", "sgpr"]


def test_the_verdict_on_several_seeds_is_the_one_in_the_middle() -> None:
    assert verdicts.middle(["certified", "not reached", "converged"]) == "converged"
    assert verdicts.middle(["certified", "not reached"]) == "not reached"
    assert verdicts.middle(["no result"]) == "no result"


def test_the_gap_is_that_of_the_seeds_whose_verdict_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path, "a", "sgpr", 0, sgpr_trace(0))
    write_run(tmp_path, "a", "sgpr", 1, sgpr_trace(1)[:2], RunStatus.BUDGET)  # no M was done: no bounds
    (row,) = verdicts.near_exactness(results.read(tmp_path)).itertuples()
    assert (row.verdict, row.seeds_near_exact) == ("not reached", 1)
    assert math.isnan(row.gap_per_point)
    assert row.basis == "no M was done"
    write_run(tmp_path, "b", "sgpr", 0, sgpr_trace(0)[:2], RunStatus.BUDGET)
    write_run(tmp_path, "b", "sgpr", 1, sgpr_trace(1, stages=3), RunStatus.BUDGET)  # not reached either, with bounds
    row = list(verdicts.near_exactness(results.read(tmp_path)).itertuples())[1]
    assert (row.verdict, row.basis) == ("not reached", "its own bounds and the steps up in M")
    assert row.gap_per_point > 0.01
    write_run(tmp_path, "a", "sgpr", 2, sgpr_trace(2))
    content = results.read(tmp_path)
    row = next(verdicts.near_exactness(content).itertuples())
    runs = verdicts.run_verdicts(content)
    assert row.verdict == "certified"
    assert row.gap_per_point == pytest.approx(runs.loc[runs["verdict"] == "certified", "gap_per_point"].mean())


def test_the_table_and_the_counts(tmp_path: Path) -> None:
    content = results.read(write_results(tmp_path))
    table = verdicts.near_exactness(content)
    by_pair = table.set_index(["dataset", "method"])
    assert by_pair.loc[("alpha", "sgpr"), "verdict"] == "certified"
    assert by_pair.loc[("alpha", "sgpr"), "m"] == 500
    assert by_pair.loc[("alpha", "sgpr"), "linear_as_good"] == "no"
    assert by_pair.loc[("alpha", "sgpr"), "seeds_near_exact"] == 3
    hostile = next(name for name in content.sizes if name != "alpha")
    assert by_pair.loc[(hostile, "gpr"), "verdict"] == "no result"
    counts = verdicts.near_exact_counts(content, table, verdicts.run_verdicts(content)).set_index("method")
    assert counts.loc["sgpr", ["near_exact", "datasets"]].tolist() == [2, 2]
    assert counts.loc["gpr", ["near_exact", "no_result", "datasets"]].tolist() == [1, 1, 2]
    assert not {"linear", "mean"} & set(counts.index)
