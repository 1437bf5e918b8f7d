"""Summaries and models as text for a terminal. Control characters in names from files are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nearexact.estimators import GPRegressor, SGPRegressor
from nearexact.tables.predicting import has_recipe, recipe_of
from nearexact.tables.recipe import RECIPE
from nearexact.tables.wording import NOT_COMPARED, method_words, verdict_words

SHOWN_COLUMNS = 12
REPAIRS = {  # by their names in the history
    "jitters_raised": "jitter raised {} times",
    "traces_repaired": "{} traces repaired",
    "traces_rejected": "{} evaluations rejected",
    "variances_clamped": "{} variances clamped",
    "restarts": "{} restarts of the optimiser",
    "rescues": "{} further starts",
}


def printable(text: str) -> str:
    """Text without control characters, which would break lines or steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """A summary, as `Summary.to_json` gives it, for readers."""
    lines = [
        f"{printable(summary['target'])}: {method_words(summary)}, kernel {summary['kernel']},"
        f" {summary['rows_train']} training rows, {summary['seconds']:.1f} s",
        "",
    ]
    if summary["scores"]:
        lines.append(f"{'test rows: ' + str(summary['rows_test']):<18}{'RMSE':>12}{'NLPD':>12}")
        lines += [
            f"  {score['predictor']:<16}{_number(score['rmse']):>12}{_number(score['nlpd']):>12}"
            for score in summary["scores"]
        ]
        covered = (f"{float(level):.0%}: {100 * share:.1f}%" for level, share in summary["coverage"].items())
        lines.append(_entry("coverage", ", ".join(covered)))
    else:
        lines.append("no test rows: no figures for new data")
    lines += [
        _entry("certificate", certificate_line(summary)),
        _entry("", verdict_words(summary)),
        _entry("hyperparameters", summary.get("about_theta", NOT_COMPARED)),
        _entry("noise", f"standard deviation {_number(summary['noise_std'])}"),
        _entry("what matters", relevance_line(summary["relevance"])),
        _entry("repaired", repair_line(summary)),
    ]
    lines += [_entry("note", printable(note)) for note in summary["notes"]]
    return lines


def certificate_line(bounds: dict[str, Any]) -> str:
    """Verdict and bounds in one line."""
    if bounds["lower"] is not None and bounds["lower"] == bounds["upper"]:
        return f"{bounds['verdict']}: log marginal likelihood {_number(bounds['lower'])}"
    return (
        f"{bounds['verdict']}: {_number(bounds['lower'])} <= log marginal likelihood <= {_number(bounds['upper'])},"
        f" gap {_number(bounds['gap_per_point'])} nats per point"
    )


def relevance_line(relevance: Sequence[dict[str, Any]]) -> str:
    """Columns with their relevance, the most relevant first."""
    shown = [f"{printable(entry['column'])} {entry['relevance']:.2f}" for entry in relevance[:SHOWN_COLUMNS]]
    more = len(relevance) - SHOWN_COLUMNS
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def repair_line(summary: dict[str, Any]) -> str:
    """What training repaired."""
    done = [phrase.format(summary["repairs"][name]) for name, phrase in REPAIRS.items() if summary["repairs"].get(name)]
    return ", ".join(done) or "nothing"


def model_facts(model: SGPRegressor | GPRegressor) -> dict[str, Any]:
    """What is in a model file, as JSON-serialisable values."""
    certificate, recipe = model.certificate_, recipe_of(model) if has_recipe(model) else None
    facts: dict[str, Any] = {
        "estimator": type(model).__name__,
        "rows": certificate.n,
        "inputs": model.n_features_in_,
        "method": model.method_,
        "m": len(model.inducing_points_),
        "kernel": repr(model.kernel_),
        "noise_variance": float(model.noise_variance_),
        "lower": float(certificate.lower),
        "upper": float(certificate.upper),
        "gap_per_point": float(certificate.gap_per_point),
        "verdict": certificate.verdict,
        "doubt": certificate.doubt,
        "about_theta": certificate.about_theta,
        "evidence": None if certificate.evidence is None else asdict(certificate.evidence),
        "history": [
            {"m": stage.m, "elbo": stage.elbo, "upper_bound": stage.upper_bound, "elapsed": stage.elapsed}
            for stage in model.history_
        ],
    }
    if recipe is not None:
        summary = model.metadata_[RECIPE].get("summary")
        if isinstance(summary, dict) and "about_theta" not in summary:  # an earlier release was sure without evidence
            summary = {**summary, "verdict": certificate.verdict}
        facts |= {**recipe.to_json(), "summary": summary}
    elif hasattr(model, "feature_names_in_"):
        facts["feature_names"] = [str(name) for name in model.feature_names_in_]
    return facts


def model_lines(model: SGPRegressor | GPRegressor) -> list[str]:
    """What is in a model file, for readers."""
    facts = model_facts(model)
    lines = [
        f"{facts['estimator']}, fitted to {facts['rows']} rows",
        _entry("method", method_words(facts)),
        _entry("kernel", printable(facts["kernel"])),
        _entry("noise variance", f"{_number(facts['noise_variance'])} (targets standardised)"),
        _entry("certificate", certificate_line(facts)),
        _entry("", verdict_words(facts)),
        _entry("hyperparameters", facts["about_theta"]),
    ]
    if not has_recipe(model):
        lines.append(
            _entry("inputs", ", ".join(map(printable, facts.get("feature_names", []))) or str(facts["inputs"]))
        )
        return lines
    recipe = recipe_of(model)
    missing = {"error": "are an error", "drop": "drop the row", "median": "are filled in"}[recipe.missing]
    lines += [_entry("target", printable(recipe.target)), _entry("missing values", missing), "columns"]
    lines += [f"  {printable(column.name):<24}  {printable(column.description())}" for column in recipe.columns]
    lines += [f"  {printable(name):<24}  left out: {reason}" for name, reason in recipe.left_out.items()]
    if facts["summary"]:
        try:
            lines += ["", *summary_lines(facts["summary"])]
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # in a damaged or foreign file
            raise ValueError(f"the model's summary is damaged: {type(error).__name__}: {error}") from error
    return lines


def _entry(name: str, text: str) -> str:
    return f"{name:<18}{text}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.5g}"
