"""Summaries and models as text for a terminal. Control characters in names from files are escaped."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nearexact.model_header import ModelHeader, positive
from nearexact.tables.conclusions import conclusions, nothing_learnt, stopped_before_test
from nearexact.tables.number_text import number, percent, seconds
from nearexact.tables.predicting import checked_recipe
from nearexact.tables.recipe import RECIPE, Recipe
from nearexact.tables.wording import NOT_COMPARED, method_words, noise_words, verdict_words

LABEL = 18  # columns for the names of figures
WIDTH = 100  # of lines that say something in words
SHOWN_NUMBERS = 12  # of a kernel's parameter
SHOWN_COLUMNS = 12
DEFAULT_ORIGIN = ("origin", 0.0)  # of an arc-cosine kernel, which is not shown
REPAIRS = {  # by their names in the history
    "jitters_raised": "jitter raised {} times",
    "traces_repaired": "{} traces repaired",
    "traces_rejected": "{} evaluations rejected",
    "variances_clamped": "{} variances clamped",
    "residuals_clamped": "{} residual variances clamped",
    "residuals_rejected": "{} bounds given up",
    "restarts": "{} restarts of the optimiser",
    "rescues": "{} further starts",
}


def printable(text: str) -> str:
    """Text without control characters, which would break lines or steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """A summary, as `Summary.to_json` gives it, for readers: first what it amounts to, then the figures."""
    return [*conclusion_lines(summary), "", *_figures(summary)]


def conclusion_lines(summary: dict[str, Any]) -> list[str]:
    """What the fit amounts to, in plain words."""
    lines = []
    for answer in conclusions(summary):
        word = f"{answer.word[0].upper()}{answer.word[1:]}. " if answer.word else ""
        text = printable(f"{answer.question} {word}{answer.text}")
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines


def _figures(summary: dict[str, Any]) -> list[str]:
    lines = [
        f"{printable(summary['target'])}: {method_words(summary)}, kernel {summary['kernel']},"
        f" {summary['rows_train']} training rows, {seconds(summary['seconds'])}"
    ]
    if summary.get("refitted"):
        lines.append(f"then trained on all {summary['rows']} rows; figures of test rows are from before that")
    lines.append("")
    if summary["scores"]:
        lines.append(f"{'test rows: ' + str(summary['rows_test']):<18}{'RMSE':>12}{'NLPD':>12}")
        lines += [
            f"  {score['predictor']:<16}{number(score['rmse']):>12}{number(score['nlpd']):>12}"
            for score in summary["scores"]
        ]
        covered = (f"{percent(float(level))}: {100 * share:.1f} %" for level, share in summary["coverage"].items())
        lines.append(_entry("coverage", ", ".join(covered)))
    else:
        why = "stopped by Ctrl-C before the test" if stopped_before_test(summary) else "no test rows"
        lines.append(f"{why}: no figures for new data")
    lines += [
        _entry("certificate", certificate_line(summary)),
        *_wrapped(verdict_words(summary)),
        _entry("hyperparameters", summary.get("about_theta", NOT_COMPARED)),
        *([] if nothing_learnt(summary) else _learnt(summary)),
        _entry("repaired", repair_line(summary)),
    ]
    lines += [_entry("note", printable(note)) for note in summary["notes"]]
    return lines


def _learnt(summary: dict[str, Any]) -> list[str]:
    return [_entry("noise", noise_words(summary)), _entry("what matters", relevance_line(summary["relevance"]))]


def certificate_line(bounds: dict[str, Any]) -> str:
    """Verdict and bounds in one line."""
    if bounds["lower"] is not None and bounds["lower"] == bounds["upper"]:
        return f"{bounds['verdict']}: log marginal likelihood {number(bounds['lower'])}"
    return (
        f"{bounds['verdict']}: {number(bounds['lower'])} <= log marginal likelihood <= {number(bounds['upper'])},"
        f" gap {number(bounds['gap_per_point'])} nats per point"
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


def model_facts(header: ModelHeader) -> dict[str, Any]:
    """What is in a model file, as JSON-serialisable values."""
    certificate, recipe, summary = header.certificate(), _recipe(header), None
    facts: dict[str, Any] = {
        "estimator": header.entries["estimator"],
        "rows": certificate.n,
        "inputs": header.inputs,
        "method": header.method,
        "m": header.inducing_points,
        "kernel": kernel_text(header.entries["kernel"]),
        "noise_variance": positive(header.entries["noise_variance"]),
        "lower": float(certificate.lower),
        "upper": float(certificate.upper),
        "gap_per_point": float(certificate.gap_per_point),
        "verdict": certificate.verdict,
        "doubt": certificate.doubt,
        "about_theta": certificate.about_theta,
        "evidence": None if certificate.evidence is None else asdict(certificate.evidence),
        "history": [
            {"m": stage["m"], "elbo": stage["objective"], **{name: stage[name] for name in ("upper_bound", "elapsed")}}
            for stage in header.stages()
        ],
    }
    if recipe is not None:
        summary = header.metadata[RECIPE].get("summary")
        if isinstance(summary, dict) and "about_theta" not in summary:  # an earlier release was sure without evidence
            summary = {**summary, "verdict": certificate.verdict}
        facts |= {**recipe.to_json(), "summary": summary}
    elif header.entries["feature_names"]:
        facts["feature_names"] = [str(name) for name in header.entries["feature_names"]]
    return facts


def model_lines(header: ModelHeader) -> list[str]:
    """What is in a model file, for readers."""
    facts, recipe = model_facts(header), _recipe(header)
    lines = [
        f"{facts['estimator']}, fitted to {facts['rows']} rows",
        _entry("method", method_words(facts)),
        _entry("kernel", printable(kernel_text(header.entries["kernel"], SHOWN_NUMBERS))),
        _entry("noise variance", f"{number(facts['noise_variance'])} (targets standardised)"),
        _entry("certificate", certificate_line(facts)),
        *_wrapped(verdict_words(facts)),
        _entry("hyperparameters", facts["about_theta"]),
    ]
    if recipe is None:
        names = ", ".join(map(printable, facts.get("feature_names", [])))
        return [*lines, _entry("inputs", names or str(facts["inputs"]))]
    missing = {"error": "are an error", "drop": "drop the row", "median": "are filled in"}[recipe.missing]
    lines.append(_entry("target", printable(recipe.target)))
    lines += [_entry(role, printable(name)) for name, role in recipe.noise_roles.items()]
    lines += [_entry("missing values", missing), "columns"]
    lines += [f"  {printable(column.name):<24}  {printable(column.description())}" for column in recipe.columns]
    lines += [f"  {printable(name):<24}  left out: {reason}" for name, reason in recipe.left_out.items()]
    if facts["summary"]:
        try:
            lines = [*summary_lines(facts["summary"]), "", *lines]
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # in a damaged or foreign file
            raise ValueError(f"the model's summary is damaged: {type(error).__name__}: {error}") from error
    return lines


def kernel_text(description: dict[str, Any], most: int | None = None) -> str:
    """A kernel from its description in a file, as it writes itself; at most so many numbers of each parameter."""
    if "operation" in description:
        parts = [(part, kernel_text(part, most)) for part in description["parts"]]
        nested = (f"({text})" if "operation" in part else text for part, text in parts)
        return f" {description['operation']} ".join(nested)
    values = description["values"].items()
    shown = (f"{name}={_values(value, most)}" for name, value in values if (name, value) != DEFAULT_ORIGIN)
    bounds = [f"{name}={_bounds(value, most)}" for name, value in description.get("bounds", {}).items()]
    return f"{description['name']}({', '.join(shown)})" + (f".with_bounds({', '.join(bounds)})" if bounds else "")


def _bounds(bounds: Any, most: int | None) -> str:
    return repr(bounds) if isinstance(bounds, str) else f"({', '.join(_values(end, most) for end in bounds)})"


def _values(value: Any, most: int | None) -> str:
    if not isinstance(value, list):
        return f"{value:.4g}"
    rest = f", … {len(value) - most} more" if most is not None and len(value) > most else ""
    return f"[{', '.join(f'{number:.4g}' for number in value[:most])}{rest}]"


def _recipe(header: ModelHeader) -> Recipe | None:
    metadata = header.metadata
    return checked_recipe(metadata, header.inputs) if RECIPE in metadata else None


def _entry(name: str, text: str) -> str:
    """A figure with its name; what is long goes on below, without breaking names of columns or files."""
    if LABEL + len(text) <= WIDTH:  # as it is, with its blanks
        return f"{name:<{LABEL}}{text}"
    lines = textwrap.wrap(text, WIDTH - LABEL, break_long_words=False, break_on_hyphens=False)
    return f"{name:<{LABEL}}" + f"\n{' ' * LABEL}".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * LABEL, subsequent_indent=" " * LABEL)
