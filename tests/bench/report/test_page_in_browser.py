"""The report in a real browser: it opens, it reacts, it needs no network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nearexact.bench.report.page import write_report
from tests.bench.synthetic import HOSTILE, write_results


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(write_results(folder / "results"), folder / "out", with_figures=False, with_published=True)
    return folder / "out" / "report.html"


class Tab:
    """A page with everything that it said and asked for."""

    def __init__(self, browser: Any, report: Path, **settings: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | settings))
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.address = f"file://{report}"
        self.page.goto(self.address)

    def chart(self, metric: str = "rmse") -> Any:
        """The first data set's chart of a metric, drawn."""
        chart = self.page.locator(f'#data-1 .chart[data-metric="{metric}"]')
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
        return chart

    def names(self, metric: str = "rmse") -> set[str]:
        return set(self.chart(metric).evaluate("chart => chart.data.map(trace => trace.name)"))

    def axis(self, metric: str = "rmse") -> tuple[str, str]:
        """Title and type of the x-axis."""
        text, kind = self.chart(metric).evaluate("c => [c.layout.xaxis.title.text, c._fullLayout.xaxis.type]")
        return text, kind


@pytest.fixture
def tab(browser: Any, report: Path) -> Iterator[Tab]:
    tab = Tab(browser, report)
    yield tab
    tab.context.close()


def test_it_opens_fast_and_quietly_and_asks_for_nothing(tab: Tab) -> None:
    for metric in ("negative_lml", "rmse", "nlpd", "coverage", "frontier"):
        assert tab.names(metric)
    started = time.perf_counter()
    tab.page.goto(tab.address)
    assert time.perf_counter() - started < 2.0
    assert tab.said == []
    assert {address for address in tab.asked if not address.startswith(("data:", "blob:"))} == {tab.address}


def test_no_two_parts_have_the_same_name(tab: Tab) -> None:
    names = tab.page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
    assert len(names) == len(set(names))
    links = tab.page.locator('nav a[href^="#"]').evaluate_all("all => all.map(e => e.getAttribute('href').slice(1))")
    assert links
    assert set(links) <= set(names)


def test_the_verdicts_come_first(tab: Tab) -> None:
    section = tab.page.locator("main > section").first
    assert "SGPR is near-exact on 2 of 2 data sets" in section.inner_text()
    assert section.locator("#table-verdicts .tag.good").count() >= 3
    assert "no result" in section.locator("#table-verdicts").inner_text()


def test_methods_are_switched_off_and_on_by_the_keyboard(tab: Tab) -> None:
    assert {"SGPR", "GPR", "Linear"} <= tab.names()
    box = tab.page.locator('#methods input[value="sgpr"]')
    box.focus()
    tab.page.keyboard.press("Space")
    assert "SGPR" not in tab.names()
    assert "GPR" in tab.names()
    tab.page.keyboard.press("Space")
    assert "SGPR" in tab.names()
    assert tab.said == []


def test_the_axis_is_switched_between_costs_and_scales(tab: Tab) -> None:
    assert tab.axis() == ("training seconds", "log")
    time_axis = tab.chart().evaluate("c => c.data[0].x")
    tab.page.locator("#costs label", has_text="FLOPs").click()
    assert tab.axis() == ("floating point operations", "log")
    assert tab.chart().evaluate("c => c.data[0].x") != time_axis
    tab.page.locator("#costs input:checked").focus()
    tab.page.keyboard.press("ArrowRight")  # to memory, by keyboard
    assert tab.axis()[0] == "peak memory in MB"
    tab.page.locator("#scales label", has_text="linear").click()
    assert tab.axis() == ("peak memory in MB", "linear")
    tab.page.locator("#costs label", has_text="prediction time").click()
    assert tab.axis()[0] == "prediction seconds"
    assert tab.said == []


def test_raw_curves_are_not_the_smoothed_ones_and_other_levels_have_other_coverage(tab: Tab) -> None:
    seeds = "c => JSON.stringify(c.data.find(trace => trace.name === 'SGPR').y)"
    smoothed = tab.chart("negative_lml").evaluate(seeds)
    tab.page.locator("#curves label", has_text="raw").click()
    assert tab.chart("negative_lml").evaluate(seeds) != smoothed
    before = tab.chart("coverage").evaluate(seeds)
    tab.page.locator("#data-1 select.level").select_option("50")
    assert tab.chart("coverage").evaluate(seeds) != before


def test_a_table_sorts_by_mouse_and_by_keyboard(tab: Tab) -> None:
    table = tab.page.locator("#table-near_exact_counts")
    names = [button.inner_text() for button in table.locator("th button").all()]
    column = names.index("near-exact")

    def cells() -> list[float]:
        return [
            float(cell.inner_text().split()[0]) for cell in table.locator(f"tbody td:nth-child({column + 1})").all()
        ]

    heading = table.locator("th").nth(column)
    heading.locator("button").click()
    assert cells() == sorted(cells())
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    tab.page.keyboard.press("Enter")
    assert cells() == sorted(cells(), reverse=True)
    assert len(set(cells())) > 1
    assert heading.get_attribute("aria-sort") == "descending"


def test_what_is_no_number_sorts_last_either_way(tab: Tab) -> None:
    table = tab.page.locator("#table-compute_to_target")
    names = [button.inner_text().replace("\u00a0", " ") for button in table.locator("th button").all()]
    column = names.index("seconds to 1 %")
    for _ in range(2):
        table.locator("th button").nth(column).click()
        texts = [cell.inner_text() for cell in table.locator(f"tbody td:nth-child({column + 1})").all()]
        numbers = [text for text in texts if text != "never"]
        assert numbers
        assert texts[: len(numbers)] == numbers


def test_hostile_names_are_words_and_nothing_else(tab: Tab) -> None:
    tab.chart("frontier")
    assert HOSTILE in tab.page.locator("#data-0 h3").inner_text()
    assert HOSTILE in tab.page.locator("#failures").inner_text()
    assert tab.page.locator("script").evaluate_all("all => all.some(s => s.textContent === 'alert(1)')") is False
    assert tab.said == []


def test_downloads_hold_the_tables(tab: Tab, report: Path, tmp_path: Path) -> None:
    for name in ("negative_lml.csv", "near_exactness.tex"):
        with tab.page.expect_download() as waiting:
            tab.page.locator(f'a[download="{name}"]').click()
        waiting.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_text("utf-8") == (report.parent / "tables" / name).read_text("utf-8")


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_nothing_sticks_out(browser: Any, report: Path, width: int) -> None:
    tab = Tab(browser, report, viewport={"width": width, "height": 844}, has_touch=True, is_mobile=True)
    tab.chart("negative_lml")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.page.evaluate("innerWidth") == width  # not zoomed out to fit something wide
    tab.context.close()


def test_on_paper_tables_are_whole_and_methods_have_their_colours(browser: Any, report: Path) -> None:
    width = 1047  # of A4 lying on its side, in pixels, within the browser's margins
    tab = Tab(browser, report, viewport={"width": width, "height": 1000})
    tab.chart()
    tab.page.emulate_media(media="print")
    tables = tab.page.locator(".scroll").evaluate_all(
        "all => all.map(e => [e.clientHeight, e.scrollHeight, e.getBoundingClientRect().left + e.scrollWidth])"
    )
    assert any(height > 600 for height, _, _ in tables)  # on the screen it would be cut off here, and scroll
    assert all(content <= height for height, content, _ in tables)  # else it would be printed over what follows
    assert max(right for _, _, right in tables) <= width
    assert tab.page.locator("#methods").is_visible()
    assert not tab.page.locator("#costs").is_visible()
    assert not tab.page.locator(".modebar").first.is_visible()
    tab.context.close()


# The contrast that WCAG asks of text, between each piece of text and the first background behind it.
CONTRAST = """() => {
  const light = (c) => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const text = "h1,h2,h3,p,a,td,th,th button,caption,label,legend,summary,.tag,.muted,strong,figcaption";
  const parts = [...document.querySelectorAll(text)];
  return Math.min(...parts.filter((e) => e.textContent.trim()).map((e) => {
    const [a, b] = [luminance(parse(getComputedStyle(e).color)), luminance(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(browser: Any, report: Path, scheme: str) -> None:
    tab = Tab(browser, report, color_scheme=scheme)
    assert tab.page.evaluate(CONTRAST) >= 4.5
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in background[4:-1].split(",")) < 150) == (scheme == "dark")
    colour = tab.chart().evaluate("c => c.data.find(trace => trace.name === 'GPR').line.color")
    assert (colour == "#E8E8E8") == (scheme == "dark")  # a black line would be lost at night
    tab.context.close()


def test_the_setting_may_change_while_the_page_is_open(tab: Tab) -> None:
    before = tab.chart().evaluate("c => c.layout.font.color")
    tab.page.emulate_media(color_scheme="dark")
    tab.page.wait_for_function(
        "before => document.querySelector('#data-1 .chart[data-metric=rmse]').layout.font.color !== before", arg=before
    )


def test_focus_can_be_seen(tab: Tab) -> None:
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    tab.page.locator("#methods input").first.focus()
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
