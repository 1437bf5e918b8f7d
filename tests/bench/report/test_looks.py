"""What methods look like, and what axes and legends show: one style for a method, nothing cut off, nothing squashed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from nearexact.bench.analysis import results, verdicts
from nearexact.bench.analysis.losses import LML, NLPD, RMSE
from nearexact.bench.report import axes, figure_style, figures
from nearexact.bench.report.method_styles import styles
from tests.bench.synthetic import NOISE, N, as_results, curve_trace, points, sgpr_trace, write_run


def test_variants_of_a_method_are_of_its_family_and_can_be_told_apart() -> None:
    names = ["sgpr", "sgpr{kernel=matern32}", "sgpr{max_inducing=50}", "wide", "gpr"]
    shown = styles(names, {"wide": "sgpr"})
    assert list(shown) == ["sgpr", "sgpr{kernel=matern32}", "sgpr{max_inducing=50}", "wide", "gpr"]
    assert shown["sgpr{kernel=matern32}"].label == "SGPR (kernel=matern32)"
    assert shown["wide"].label == "wide"
    looks = [(style.colour, style.dash, style.marker) for style in shown.values()]
    assert len(set(looks)) == len(names)
    assert len({style.dash for name, style in shown.items() if name != "gpr"}) == 4

    def hue(colour: str) -> list[int]:
        """Which of red, green and blue is the strongest, down to the weakest."""
        parts = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
        return sorted(range(3), key=lambda k: -parts[k])

    assert {tuple(hue(shown[name].colour)) for name in names[:4]} == {(2, 1, 0)}  # shades of blue


def test_a_plugin_called_like_sgpr_looks_like_a_plugin() -> None:
    shown = styles(["sgpr", "sgpr_fast", "sgpr_fast.py:SGPR"])
    assert shown["sgpr_fast"].colour not in {shown["sgpr"].colour, styles(["sgpr-paper"])["sgpr-paper"].colour}
    assert shown["sgpr_fast.py:SGPR"].label == "sgpr_fast.py:SGPR"
    assert len({(style.colour, style.dash) for style in styles([f"plugin{k}" for k in range(20)]).values()}) == 20


def test_a_method_has_one_colour_in_all_figures(tmp_path: Path) -> None:
    """Of two plug-ins only one reports bounds, and only one has run on the second data set."""
    for name, exact in (("estimate", False), ("proof", True)):
        write_run(tmp_path, "a", name, 0, curve_trace(0, final=250.0, exact=exact))
    write_run(tmp_path, "b", "proof", 0, curve_trace(1, final=200.0, exact=True))
    write_run(tmp_path, "b", "sgpr", 0, sgpr_trace(0))
    content = results.read(tmp_path)
    colour = {name: style.colour.lower() for name, style in styles(["estimate", "proof", "sgpr"]).items()}
    for name, figure in figures.all_figures(content, verdicts.near_exactness(content)):
        drawn = {to_hex(line.get_color()) for ax in figure.axes for line in ax.get_lines()}
        if name != "near_exactness":
            assert colour["proof"] in drawn, name
        assert (colour["estimate"] in drawn) == (
            name in ("performance_profiles", "a_curves", "a_calibration", "a_frontiers")
        )


def test_an_estimate_out_of_all_proportion_does_not_set_an_axis() -> None:
    rows = [
        {"method": "gpr", "elapsed": 1.0, "elbo": 300.0, "upper_bound": 300.0, "rmse": 0.3, "nlpd": 0.2},
        {"method": "itergp", "elapsed": 1.0, "elbo": 6.2e13, "rmse": 0.4, "nlpd": -5e6},
        {"method": "other", "elapsed": 1.0, "elbo": 350.0, "rmse": 3.1e9, "nlpd": 0.3},
    ]
    content = as_results(points(rows))
    low, high = axes.limits(content.points, LML, N, content.bounding)
    assert low < -350.0
    assert high - low < 2.0 * (-NOISE + 300.0)
    assert axes.limits(content.points, NLPD, N, content.bounding)[0] > -1.0
    assert axes.limits(content.points, RMSE, N, content.bounding)[1] < 2.0


def test_a_proved_likelihood_is_always_within_its_axis() -> None:
    rows = [{"method": name, "elapsed": 1.0, "elbo": e} for name, e in (("sgpr", NOISE + 5.0), ("gpr", 5000.0))]
    rows += [{"method": "svgp", "seed": seed, "elapsed": 1.0, "elbo": NOISE + 10.0} for seed in range(5)]
    content = as_results(points(rows))
    assert axes.limits(content.points, LML, N, content.bounding)[0] < -5000.0


def test_costs_out_of_all_proportion_do_not_set_an_axis() -> None:
    frame = points({"method": "p", "seed": k, "elapsed": 1.0 + k, "flops": f} for k, f in enumerate([1e9, 2e9, 1e200]))
    assert axes.span(frame, "flops") == (1e9, 2e9)
    assert axes.span(frame, "elapsed") == (1.0, 3.0)
    assert axes.span(points([{"elapsed": 1.0, "flops": math.nan}]), "flops") is None


@pytest.mark.parametrize("count", [2, 9, 14])
def test_a_legend_is_whole(count: int) -> None:
    names = [f"plugins/some_file.py:AVeryLongName{k}" for k in range(count)]
    figure = Figure(figsize=(7.4, 2.75), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots(1, 3)
    figure_style.legend(figure, figure_style.handles(styles(names).values()))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0.0
    assert box.x1 <= figure.bbox.width
    assert box.y0 >= 0.0
    assert len(figure.legends[0].get_texts()) == count
    assert min(ax.get_window_extent().y0 for ax in figure.axes) > box.y1  # nothing is covered
