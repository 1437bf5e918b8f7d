"""The page about a fit, in a real browser: no errors, no requests, no names that become markup, no overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nearexact.tables import Fitted, fit
from nearexact.tables.fit_page import LEAST_RELEVANCE
from nearexact.tables.partial_dependence import partial_dependence
from nearexact.tables.prediction_distance import prediction_distance

HOSTILE = '<img src=x onerror="window.hacked=1">&</script><script>window.hacked=1</script>'
LONG = "a_name_without_any_place_to_break_it_" * 4


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {
            HOSTILE: rng.normal(size=n),
            LONG: rng.normal(size=n),
            "kind": rng.choice([HOSTILE, "b", "%{x}<b>c</b>"], size=n),
            "when": pd.date_range("2015-01-01", periods=n, freq="12D"),
        }
    )
    frame["<i>target</i>"] = np.sin(2.0 * frame[HOSTILE]) + 0.5 * (frame["kind"] == "b") + 0.1 * rng.normal(size=n)
    path = tmp_path_factory.mktemp("page") / "data.csv"
    frame.to_csv(path, index=False)
    return fit(path, "<i>target</i>", kernel="se", time_limit="20s", refit=False)


@pytest.fixture(scope="module")
def page_file(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "fit.html"
    fitted.write_page(path)
    return path


def check_toolbar(charts: Any, chart: Any, has_hover: bool) -> None:
    """It is there only while the mouse is over a chart, above the legend, and no dark box."""
    assert (charts.locator(".modebar-group").count() > 0) == has_hover
    if not has_hover:
        return
    bars, box = chart.locator(".modebar-group"), "(element) => element.getBoundingClientRect().toJSON()"
    assert bars.first.evaluate("(bar) => getComputedStyle(bar).opacity") == "0"
    boxes = bars.evaluate_all("(bars) => bars.map((bar) => getComputedStyle(bar).backgroundColor)")
    assert set(boxes) == {"rgba(0, 0, 0, 0)"}
    legend = chart.locator(".legend").evaluate(box)
    assert all(bars.nth(i).evaluate(box)["bottom"] <= legend["top"] + 1.0 for i in range(bars.count()))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_in_a_browser(width: int, scheme: str, page_file: Path, fitted: Fitted, browser: Any) -> None:
    phone = width < 500
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=phone)
    page = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    charts = page.locator(".chart")
    for i in range(charts.count()):
        charts.nth(i).scroll_into_view_if_needed()
        charts.nth(i).locator(".main-svg").first.wait_for()
    curves = len([entry for entry in fitted.summary.relevance if entry.relevance >= LEAST_RELEVANCE])
    assert charts.count() == (6 if fitted.summary.method == "sparse" else 5) + curves
    check_toolbar(charts, page.locator("[data-figure=bounds-time]"), has_hover=not phone)
    assert problems == []
    assert requests == [page_file.as_uri()]
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.chart')].filter(c => c.scrollWidth > c.clientWidth + 1).length"
    assert page.evaluate(wider) == 0
    assert HOSTILE in page.inner_text("table >> nth=2")
    assert "better than a linear model" in page.inner_text(".conclusions .tag.good >> nth=0")
    assert "<i>target</i>" in page.inner_text("h1")
    titles = " ".join(page.locator(".chart .ytitle, .chart .xtitle").all_text_contents())
    assert "actual <i>target</i>" in titles  # as text, in Plotly's labels too
    context.close()


def test_the_page_is_one_file(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    assert "<script>window.hacked" not in text
    assert "default-src &#39;none&#39;" in text
    parts = (
        "Is it good?",
        "How good the predictions",
        "Which columns matter",
        "How near to the exact",
        "How it was made",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    jargon = ("inducing points", "nats", "bounds", "hyperparameters", "kernel")
    words = text[text.index("<main") :]
    assert min(words.index(word) for word in jargon) > words.index("How near to the exact")
    assert len(text.encode()) < 2_000_000


def test_nothing_is_green_where_nothing_was_learnt(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.normal(size=(120, 4)), columns=["a", "b", "c", "y"]).to_csv(tmp_path / "t.csv", index=False)
    found = fit(tmp_path / "t.csv", "y", kernel="se", time_limit="20s")
    assert found.summary.verdict == "no better than noise"
    found.write_page(tmp_path / "fit.html")
    text = (tmp_path / "fit.html").read_text(encoding="utf-8")
    assert "tag good" not in text
    assert "Which columns matter" not in text
    assert "what matters" not in str(found.summary)
    assert "Tried: the kernel se, and " in text
    assert not found.summary.refitted


def test_the_page_says_how_far_predictions_can_be_from_the_exact_ones(fitted: Fitted, page_file: Path) -> None:
    distance = prediction_distance(fitted)
    frame = fitted.prepared.recipe.frame(fitted.prepared.test)
    certified = fitted.model.certify_predictions(frame)
    assert distance.rows == len(fitted.prepared.test) == len(certified.mean)
    errors = certified.mean_error / fitted.model.predict(frame, return_std=True)[1]
    assert distance.largest_mean_error == pytest.approx(errors.max(), rel=0.5)
    assert 0.0 < distance.median_mean_error <= distance.largest_mean_error
    assert 0.0 < distance.median_std_width <= distance.largest_std_width <= 0.01  # which is near enough
    text = page_file.read_text(encoding="utf-8")
    assert f"proved, for {distance.rows} rows" in text
    assert "standard deviations of an observation" in text


def test_partial_dependence_is_an_average_of_predictions(fitted: Fitted) -> None:
    recipe, values = fitted.prepared.recipe, fitted.prepared.train
    curve = partial_dependence(fitted.model, recipe, values, "kind")
    assert curve.places == list(recipe.columns[recipe.names.index("kind")].categories)
    rows = values[np.random.default_rng(0).permutation(len(values))[:50]].copy()
    for place, mean, std in zip(range(3), curve.mean, curve.std, strict=True):
        rows[:, recipe.names.index("kind")] = place
        assert mean == pytest.approx(fitted.model.predict(recipe.frame(rows)).mean())
        draws = fitted.model.sample_y(recipe.frame(rows), 4000).mean(0)
        noise = fitted.summary.noise_std / np.sqrt(len(rows))
        assert np.hypot(std, noise) == pytest.approx(draws.std(), rel=0.1)
    smooth = partial_dependence(fitted.model, recipe, values, HOSTILE)
    assert np.ptp(smooth.mean) > 1.0  # a sine
    assert np.ptp(partial_dependence(fitted.model, recipe, values, LONG).mean) < 0.2  # nothing
    assert curve.rows == 50
    assert partial_dependence(fitted.model, recipe, values[:12], LONG).rows == 12


def test_a_curve_of_dates_shows_the_course_of_a_year_and_no_times_of_day() -> None:
    rng = np.random.default_rng(0)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.sort(rng.uniform(0.0, 4.0 * 365.0, 250)), unit="D")
    days = (when - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    season, daytime = (np.sin(2.0 * np.pi * np.asarray(days) / period) for period in (365.2425, 1.0))
    frame = pd.DataFrame({"when": when, "y": season + daytime + 0.05 * rng.normal(size=250)})
    found = fit(frame, "y", kernel="se", time_limit="20s", refit=False)
    curve = partial_dependence(found.model, found.prepared.recipe, found.prepared.train, "when")
    places = (pd.DatetimeIndex(curve.places) - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    expected = np.sin(2.0 * np.pi * np.asarray(places) / 365.2425)
    offset = np.median(curve.mean - expected)  # of the times of day of the rows that it is averaged over
    assert np.abs(curve.mean - expected - offset).max() < 0.2
    assert (np.diff(places) < 365.2425 / 9.0).all()
