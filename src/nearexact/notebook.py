"""How notebooks show fitted estimators and certificates: as small HTML tables, in which all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nearexact.certificate import Certificate
    from nearexact.estimators import GPRegressor, SGPRegressor

MOST_INPUTS = 20


def certificate_html(certificate: Certificate) -> str:
    """Verdict and bounds."""
    return _table("nearexact certificate", _certificate_rows(certificate))


def estimator_html(model: SGPRegressor | GPRegressor) -> str:
    """The fitted hyperparameters, the certificate and the number of inducing points."""
    rows = [
        ("inducing points", escape(str(len(model.inducing_points_)))),
        *_certificate_rows(model.certificate_),
        ("noise variance", f"{model.noise_variance_:.4g} (targets standardised)"),
    ]
    shared = {name: value for name, value in model.kernel_.parameters.items() if value.ndim == 0}
    rows += [(name, f"{float(value):.4g}") for name, value in shared.items()]
    return _table(f"Fitted {type(model).__name__}", rows) + _inputs(model)


def _certificate_rows(certificate: Certificate) -> list[tuple[str, str]]:
    badge = f"padding:0 .5em;border-radius:1em;color:#fff;background:{certificate.palette.light.text}"
    return [
        ("verdict", f'<span style="{badge}">{escape(str(certificate.verdict))}</span>'),
        ("log marginal likelihood", f"{certificate.lower:.6g} to {certificate.upper:.6g}"),
        ("gap", f"{certificate.gap_per_point:.2g} nats per point, {certificate.n} points"),
        ("ELBO", f"{certificate.elbo:.6g}"),
        ("hyperparameters", escape(certificate.about_theta)),
        *([("divergence from the exact posterior", certificate.divergence)] if certificate.divergence else []),
    ]


def _inputs(model: SGPRegressor | GPRegressor) -> str:
    """Kernel parameters that each input has, such as lengthscales."""
    d = model.n_features_in_
    parameters = {name: np.broadcast_to(v, d) for name, v in model.kernel_.parameters.items() if v.ndim == 1}
    if not parameters:
        return ""
    names = [str(name) for name in getattr(model, "feature_names_in_", [f"input {i}" for i in range(d)])]
    lines = [[name, *(f"{values[i]:.4g}" for values in parameters.values())] for i, name in enumerate(names)]
    more = f"<p>and {d - MOST_INPUTS} more inputs</p>" if d > MOST_INPUTS else ""
    return _grid(["input", *parameters], lines[:MOST_INPUTS]) + more


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table with names and values. Names are escaped here, values must be escaped already."""
    body = "".join(f'<tr><th style="text-align:left">{escape(n)}</th><td>{value}</td></tr>' for n, value in rows)
    caption = f'<caption style="text-align:left;font-weight:bold">{escape(title)}</caption>'
    return f'<table class="nearexact">{caption}<tbody>{body}</tbody></table>'


def _grid(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<table class="nearexact"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
