"""What a fit amounts to, in words for readers who know no Gaussian processes.

A gap of nearly 0 looks like success, but it is about one set of hyperparameters only. So the words about a verdict say
what speaks for these hyperparameters too, or what does not.
"""

from __future__ import annotations

from typing import Any

from nearexact.certificate import CONVERGED_CHANGE, NEAR_EXACT, Doubt
from nearexact.evidence import CERTIFIED_GAP
from nearexact.tables.number_text import number

NOT_COMPARED = "not compared with others"  # hyperparameters, in a summary that does not say
VERDICTS = {
    "exact": "This is the exact Gaussian process of its rows, not an approximation of it.",
    "certified": f"The bounds on the log marginal likelihood are less than {CERTIFIED_GAP:g} nats per row apart: with"
    " these hyperparameters this is, for all that matters, the exact Gaussian process.",
    "converged": f"More inducing points change the bound by less than {100.0 * CONVERGED_CHANGE:g} % of what the model"
    " explains: with these hyperparameters no more is to be expected from them.",
    "not reached": "A limit came before the model was near to the exact Gaussian process: with more time or memory it"
    " would become better.",
    "no better than noise": "The model explains no more than chance would, given how many inputs there are, and a"
    " search from several starts found nothing better: nothing shows that these columns explain the target.",
}
SO_FAR = "The model does no better than a constant so far."
DOUBTS = {
    Doubt.NOT_COMPARED: "It was not looked whether the exact Gaussian process would choose other hyperparameters"
    " (lengthscales, noise): a much better model may exist.",
    Doubt.STILL_RISING: "A limit came before the best hyperparameters (lengthscales, noise) were found: with a higher"
    " one the model may become better.",
    Doubt.FOUND_ONCE: "The best hyperparameters (lengthscales, noise) were found from one start only, and others ended"
    " elsewhere: a better model may have been missed.",
    Doubt.FOUND_RARELY: "The best hyperparameters (lengthscales, noise) were found from few of many starts, and others"
    " ended elsewhere: a better model may have been missed.",
    Doubt.BOUND_TOO_LOW: "With these hyperparameters (lengthscales, noise) the exact Gaussian process explains the data"
    " better than this model does.",
    Doubt.BETTER_ELSEWHERE: "Other hyperparameters (lengthscales, noise) explain the data better: this model is a local"
    " optimum, mostly one that is too smooth, and the exact Gaussian process would be another. Allow more time.",
}
SUPPORT = "A search from several starts found no better hyperparameters (lengthscales, noise), which is no proof."


def method_words(record: dict[str, Any]) -> str:
    """Which way was taken, from a summary or the facts about a model; earlier summaries do not say, and were sparse."""
    method = record.get("method", "sparse")
    if method == "sparse":
        return f"sparse GP with {record['m']} inducing points"
    ways = {"cholesky": "", "iterative": ", by conjugate gradients"}
    return f"exact GP{ways[method]}" if method in ways else f"GP by the method {method}"


def noise_words(record: dict[str, Any]) -> str:
    """How large the learnt noise is, and what is known besides."""
    known = record.get("known_noise_std", 0.0)
    besides = f", besides what is known of each row: {number(known)} on average" if known else ""
    return f"standard deviation {number(record['noise_std'])}{besides}"


def verdict_words(record: dict[str, Any]) -> str:
    """What the verdict means, and what speaks for the hyperparameters or against them."""
    verdict, doubt = record["verdict"], Doubt(record["doubt"]) if record.get("doubt") else None
    if "doubt" not in record:  # in a summary of an earlier release
        doubt = Doubt.NOT_COMPARED
    if doubt is None:
        return f"{VERDICTS[verdict]} {SUPPORT}" if verdict in NEAR_EXACT else VERDICTS[verdict]
    if verdict == "no better than noise":
        return f"{SO_FAR} {DOUBTS[doubt]}"
    gap = record["gap_per_point"]
    near_at_theta = verdict == "not reached" and gap is not None and abs(gap) < CERTIFIED_GAP
    return DOUBTS[doubt] if near_at_theta else f"{VERDICTS[verdict]} {DOUBTS[doubt]}"
