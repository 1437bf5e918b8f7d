"""What notebooks show: the figures are there, and nothing in a name becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import sklearn

from nearexact import Certificate, GPRegressor, SGPRegressor
from nearexact.kernels import Linear, SquaredExponential
from nearexact.notebook import estimator_html
from tests.problems import regression

HOSTILE = "<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("estimator", [SGPRegressor, GPRegressor])
def test_a_fitted_estimator_shows_what_it_has_learnt(estimator: type[SGPRegressor]) -> None:
    X, y = regression(60)
    frame = pd.DataFrame(X, columns=["a", HOSTILE, "c"])
    model = estimator(SquaredExponential() + Linear(), random_state=0, time_limit="20s")
    before = model._repr_html_()
    model.fit(frame, y)
    shown = model._repr_html_()
    assert "nearexact" not in before
    ours = estimator_html(model)  # before scikit-learn's diagram, which counts how often it was drawn
    assert shown.startswith(ours)
    assert model._repr_mimebundle_()["text/html"].startswith(ours)
    tags = Tags(shown)
    assert "img" not in tags.tags
    assert HOSTILE in tags.text
    lengthscales = model.kernel_.parameters["0.lengthscales"]
    for part in (
        f"Fitted {estimator.__name__}",
        str(model.certificate_.verdict),
        f"{model.elbo_:.6g}",
        f"{model.noise_variance_:.4g}",
        *(f"{value:.4g}" for value in lengthscales),
    ):
        assert part in tags.text
    with sklearn.config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_()


def test_many_inputs_are_cut_short() -> None:
    rng = np.random.default_rng(0)
    model = GPRegressor(time_limit="5s").fit(rng.normal(size=(30, 25)), rng.normal(size=30))
    assert "and 5 more inputs" in model._repr_html_()


def test_a_certificate_shows_its_bounds() -> None:
    certificate = Certificate(lower=-90.0, upper=-80.0, elbo=-100.0, n=50, verdict=HOSTILE)  # type: ignore[arg-type]
    tags = Tags(certificate._repr_html_())
    assert set(tags.tags) == {"table", "caption", "tbody", "tr", "th", "td", "span"}
    for part in (HOSTILE, "-90 to -80", "0.2 nats per point, 50 points", "-100", "at most 20 nats"):
        assert part in tags.text
