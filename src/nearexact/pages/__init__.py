"""Self-contained HTML pages: one file with its style, its scripts and its data, which opens without a network.

    html = pages.render("report.html", scripts=("report.js",), charts=True, title="Results", data=pages.as_json(data))

A page is a template in `templates/` that extends `base.html` and fills its blocks `header` and `content`. It gets the
shared style, tables that sort (the macro `table` in `parts.html`) and, with `charts=True`, Plotly and the functions in
`assets/charts.js` that draw a chart when it comes into view. Whatever a template shows is escaped, and a policy in the
page forbids every script but ours and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nearexact.verdict_colours import PALETTES, Colours
from nearexact.version import installed_version

__all__ = ["as_json", "render"]

SIGNIFICANT_DIGITS = 5  # of numbers in charts
# The part of plotly.js 4.1.1 that knows lines, points and bars, a quarter of the whole: the file of the npm package
# plotly.js-basic-dist-min as it is. Its licence (MIT) is beside it.
PLOTLY = "plotly/plotly-basic.min.js"


def render(template: str, *, scripts: Sequence[str] = (), charts: bool = False, **context: Any) -> str:
    """The page made from a template, with these scripts of `assets/` after the shared ones."""
    texts = [_asset(name) for name in ("tables.js", *(["charts.js"] if charts else []), *scripts)]
    plotly = _asset(PLOTLY) if charts else ""  # as text: charts.js makes a script of it when the first chart is seen
    allowed = [*texts, plotly] if charts else texts
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in allowed)
    environment = Environment(
        loader=PackageLoader("nearexact.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        **context,
        page_style=Markup(_tag_colours() + _asset("style.css")),
        page_scripts=[Markup(text) for text in texts],
        page_plotly=Markup(plotly),
        page_policy=f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:",
        page_version=installed_version(),
    )


def as_json(data: Any) -> Markup:
    """Data for a `<script type="application/json">`: nothing in it can end the script, and it is strict JSON.

    Numbers are rounded to what a chart can show; what is not a number becomes null.
    """
    text = json.dumps(_plain(data), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    if hasattr(data, "tolist"):  # NumPy's arrays and numbers
        return _plain(data.tolist())
    if isinstance(data, float):
        return _rounded(data) if math.isfinite(data) else None
    return data


def _rounded(number: float) -> float | int:
    rounded = float(f"{number:.{SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _tag_colours() -> str:
    """The colours of tags as variables for `style.css`."""

    def variables(colours: Mapping[str, Colours]) -> str:
        return " ".join(f"--{kind}: {text}; --{kind}-back: {back};" for kind, (text, back) in colours.items())

    light = variables({kind: palette.light for kind, palette in PALETTES.items()})
    dark = variables({kind: palette.dark for kind, palette in PALETTES.items()})
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


@lru_cache(maxsize=16)
def _asset(name: str) -> str:
    return files("nearexact.pages").joinpath("assets", name).read_text(encoding="utf-8")
