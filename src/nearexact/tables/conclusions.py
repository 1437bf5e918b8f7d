"""What a fit amounts to, in plain words, before any figure: is it good, are its intervals honest, would more time or
more rows help, what to do next.

All of it follows from the summary of the fit, so that a model file tells the same as the command that wrote it. Green
("good") is only what is clearly better than a linear model on rows that were kept back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nearexact.certificate import NEAR_EXACT, Doubt
from nearexact.limits import parse_seconds
from nearexact.tables.number_text import percent
from nearexact.tables.wording import DOUBTS
from nearexact.verdict_colours import Kind

Record = dict[str, Any]  # as `Summary.to_json` gives it

CLEAR_LEAD = 2.0  # standard errors by which a mean squared error must be lower to be clearly so
FEW_TEST_ROWS, FEW_FOR_INTERVALS = 10, 20  # with fewer, nothing is clear
# Levels of intervals that are looked at, and how far the share of targets in them may be off even if not by chance.
INTERVALS = {"0.95": 0.02, "0.8": 0.05, "0.5": 0.05}
UNLIKELY = 0.01  # that chance leaves so few of a handful of values in their intervals
TOO_SURE = 0.1  # nats by which the mean's NLPD must be lower for the model to be surer than it should be
MOSTLY_NOISE, PARTLY_NOISE = 0.9, 0.7  # of the mean squared error: then more rows can change hardly anything, or little
FEW_ROWS_PER_INPUT = 10
# Of the time limit: a step takes several times as long as all before it, and each of two trainings has a part of it.
USED_UP = 0.05
HELPS = {True: "yes", False: "hardly", None: "not clear"}


@dataclass(frozen=True)
class Conclusion:
    """A question that readers have, and its answer: in a word or two, which are coloured by their kind, and in full."""

    question: str
    word: str
    kind: Kind
    text: str


def conclusions(record: Record) -> list[Conclusion]:
    """The answers, the most important first."""
    quality = _quality(record)
    intervals = _intervals(record, quality.kind == "good")
    more = _more(record, is_sound(quality, intervals))
    return [quality, intervals, more, _next_steps(record, quality, intervals)]


def is_sound(quality: Conclusion, intervals: Conclusion) -> bool:
    """Whether a model can be believed about the size of the noise: it is good, and knows how good."""
    return quality.kind == "good" and intervals.kind != "bad"


def stopped_before_test(record: Record) -> bool:
    """Whether Ctrl-C came before the rows that were kept back could be predicted."""
    return bool(record.get("interrupted") and record["rows_test"] and not record["scores"])


def nothing_learnt(record: Record) -> bool:
    """Whether the model explains no more than a constant, and rows that were kept back do not say otherwise."""
    return _looks_like_noise(record) and not _beats_the_mean(record)


def _looks_like_noise(record: Record) -> bool:
    return bool(record["verdict"] == "no better than noise")


def _beats_the_mean(record: Record) -> bool:
    """Whether errors on rows that were kept back are clearly smaller than those of always predicting the mean."""
    if not record["scores"] or record["rows_test"] < FEW_TEST_ROWS:
        return False
    model, *_, mean = record["scores"]
    return _is_clearly_better(model, mean)


def _quality(record: Record) -> Conclusion:
    answer = _answer_to("Is it good?")
    if nothing_learnt(record):
        return answer("nothing learnt", "plain", " ".join([*_errors(record), *_tried(record)]))
    if not record["scores"]:
        why = "It was stopped by Ctrl-C before the test" if stopped_before_test(record) else "No rows were kept back"
        return answer("not tested", "plain", f"{why}, so nothing is known about errors on new rows.")
    model, linear, mean = record["scores"]
    errors = " ".join(_errors(record))
    if record["rows_test"] < FEW_TEST_ROWS:
        return answer("too few test rows", "plain", f"{errors} So few rows cannot tell what is better.")
    if _is_clearly_better(linear, model):
        return answer("a linear model is better", "bad", errors)
    if _looks_like_noise(record):
        but = "But with so many inputs for so few rows, noise could be explained as well: do not rely on it."
        return answer("perhaps", "open", f"{errors} {but}")
    if not _is_clearly_better(model, mean):
        return answer("no clear gain over the mean", "open", f"{errors} The difference may be chance.")
    if _lead(linear) < CLEAR_LEAD:
        return answer("a linear model does as well", "open", f"{errors} The difference may be chance.")
    if _lead(mean) < CLEAR_LEAD:  # ranks are no praise
        return answer("no clear gain over the mean", "open", f"{errors} The difference may be chance.")
    return answer("better than a linear model", "good", errors)


def _errors(record: Record) -> list[str]:
    """How large errors are next to those of simple predictors; nothing without test rows."""
    if not record["scores"]:
        return []
    model, linear, mean = (score["rmse"] for score in record["scores"])
    by_linear, by_mean = (_compared(model, other) for other in (linear, mean))
    return [
        f"On {record['rows_test']} rows that were kept back, its errors are {by_linear} those of a linear model, and"
        f" {by_mean} those of always predicting the mean."
    ]


def _compared(error: float, other: float) -> str:
    change = error / other - 1.0 if other > 0.0 else math.inf
    if abs(change) < 0.005:
        return "as large as"
    if change > 1.0:
        return "more than twice as large as"
    return f"{percent(change)} larger than" if change > 0.0 else f"{percent(-change)} smaller than"


def _lead(score: Record, kind: str = "model_lead") -> float:
    """Standard errors by which the model is better; none in summaries of earlier releases, where nothing is clear."""
    lead = score.get(kind)
    return 0.0 if lead is None else float(lead)


def _is_clearly_better(score: Record, other: Record) -> bool:
    """Of the model and a simple predictor: by the means of their squared errors, or by nearly all rows if few hide it.

    Only for what is no praise: the model is green by its mean squared error alone.
    """
    # The model itself has none: the lead of a simple predictor is the model's with its sign turned.
    by_mean, by_rank = (_lead(other, kind) - _lead(score, kind) for kind in ("model_lead", "model_rank_lead"))
    return by_mean >= CLEAR_LEAD or (by_rank >= CLEAR_LEAD and score["rmse"] < other["rmse"])


def _tried(record: Record) -> list[str]:
    """What was tried before nothing was found, and whether that was enough to say so."""
    evidence, kernels = record.get("evidence"), _compared_kernels(record)
    tried = f"{len(kernels)} kernels" if kernels else f"the kernel {record['kernel']}"
    words = f"Tried: {tried}"
    if evidence is not None:
        words += f", and {evidence['starts']} starts of the optimiser on {evidence['rows']} rows"
    if record.get("doubt"):
        return [f"{words}.", DOUBTS[Doubt(record["doubt"])]]
    return [f"{words}; nothing explains more than chance would."]


def _compared_kernels(record: Record) -> set[str]:
    return {trial["kernel"] for trial in record["tried"] if trial["bound"] is not None}


def _intervals(record: Record, is_good: bool) -> Conclusion:
    answer, n = _answer_to("Are its intervals honest?"), record["rows_test"]
    if not record["scores"]:
        return answer("not tested", "plain", "Only rows that were kept back can tell.")
    shares = {level: record["coverage"][level] for level in INTERVALS}
    if n < FEW_FOR_INTERVALS and _chance_of_so_few(0.95, shares["0.95"], n) >= UNLIKELY:
        return answer("cannot be told", "plain", f"{n} rows that were kept back are too few to tell.")
    found = f"{percent(shares['0.95'])} of the values that were kept back lie in their 95 % interval"
    off = {level: _deviation(float(level), share, n, INTERVALS[level]) for level, share in shares.items()}
    if off["0.95"] < 0.0:
        return answer("too narrow", "bad", f"Only {found}: the model is surer than it should be.")
    model, *_, mean = (score["nlpd"] for score in record["scores"])
    if model > mean + TOO_SURE:
        also = "some of the others are far outside: weighed by how sure it was, always predicting the mean is better."
        return answer("too narrow for some", "bad", f"{found}, but {also}")
    if off["0.95"] > 0.0:
        return answer("too wide", "open", f"{found}: the model is less sure than it could be.")
    wrong = next((level for level in ("0.5", "0.8") if off[level]), None)
    if wrong is not None:
        size = "narrow" if off[wrong] < 0.0 else "wide"
        also = f"but {percent(shares[wrong])} in their {percent(float(wrong))} interval: the inner ones are too {size}."
        return answer("at 95 %, yes", "fair", f"{found}, {also}")
    return answer("yes", "good" if is_good else "plain", f"{found}.")


def _chance_of_so_few(level: float, share: float, n: int) -> float:
    """How likely it is that no more than this share of n values lie in intervals of that level, if they are honest."""
    inside = round(share * n)
    return sum(math.comb(n, k) * level**k * (1.0 - level) ** (n - k) for k in range(inside + 1))


def _deviation(level: float, share: float, n: int, slack: float) -> float:
    """How far a share is from the level it should have; 0 if chance may explain it, or if it hardly matters."""
    chance = 2.0 * math.sqrt(level * (1.0 - level) / n)
    return share - level if abs(share - level) > max(chance, slack) else 0.0


def _more(record: Record, sound: bool) -> Conclusion:
    time, more_time = _more_time(record)
    rows, more_rows = _more_rows(record, sound)
    word = f"time: {HELPS[more_time]}, rows: {HELPS[more_rows]}"
    return _answer_to("Would more time or more rows help?")(word, "open" if more_time else "plain", f"{time} {rows}")


def _more_time(record: Record) -> tuple[str, bool]:
    doubt, ended = record.get("doubt"), record["ended"]
    if _is_unfinished(record):
        return "More time may help: it was stopped by Ctrl-C.", True
    if ended == "memory limit":
        return "More time would not help, but more memory would: its limit ended the training.", False
    if record["verdict"] in NEAR_EXACT:
        untried = len({trial["kernel"] for trial in record["tried"]} - _compared_kernels(record))
        if untried:
            return f"More time would let {untried} further kernels be tried.", True
        return "More time would hardly help: training came to its end.", False
    if nothing_learnt(record) and not doubt:
        return "More time would hardly help.", False
    if not time_was_used(record.get("time_limit", ""), record.get("seconds")):
        return "More time would hardly help: nearly all of it was left when training ended.", False
    if ended == "time limit":
        limit = f" of {record['time_limit']}" if record.get("time_limit") else ""
        return f"More time may help: the limit{limit} came before the search for the best model was over.", True
    if doubt:
        return "More time may help: it is not certain that this is the best model.", True
    return "More time would hardly help: training came to its end.", False


def time_was_used(limit: str | None, seconds: float | None) -> bool:
    """Whether a time limit can be to blame: it has been used up, or so far that a further step may not have fitted."""
    try:
        return limit is not None and (seconds is None or seconds >= USED_UP * parse_seconds(limit))
    except ValueError:  # earlier releases did not always write it down, and others may write it otherwise
        return True


def _is_unfinished(record: Record) -> bool:
    """Whether Ctrl-C came before there was a trained model; of one that was tested, the training is over."""
    return bool(record.get("interrupted") and not record["scores"])


def whole_noise(record: Record) -> float:
    """Standard deviation of the noise, with what is known of the rows."""
    return math.hypot(record["noise_std"], record.get("known_noise_std", 0.0))


def _more_rows(record: Record, sound: bool) -> tuple[str, bool | None]:
    rows, inputs = record.get("rows", record["rows_train"]), record["inputs"]
    if _has_few_rows(record):
        return f"More rows would help: {rows} are few for {inputs} {'input' if inputs == 1 else 'inputs'}.", True
    if not sound:
        return "Whether more rows would help cannot be told from this model.", None
    error = record["scores"][0]["rmse"]
    noise = min((whole_noise(record) / error) ** 2, 1.0) if error else 1.0
    if noise >= MOSTLY_NOISE:
        return "More rows would hardly help: nearly all of the error is noise.", False
    if noise >= PARTLY_NOISE:
        return "More rows would help a little: most of the error is noise.", False
    return f"More rows would help: noise is {percent(noise)} of the squared error, and the rest falls with rows.", True


def _has_few_rows(record: Record) -> bool:
    return bool(record.get("rows", record["rows_train"]) < FEW_ROWS_PER_INPUT * record["inputs"])


def _next_steps(record: Record, quality: Conclusion, intervals: Conclusion) -> Conclusion:
    steps = [f"look whether it is a mistake that {words}" for words in record.get("far_targets", [])]
    steps += [f"leave out {name} (--ignore) if it only numbers the rows" for name in record.get("index_like", [])]
    if _is_unfinished(record):
        steps.append("fit again, and let it come to its end or give it a shorter --time-limit")
    elif _more_time(record)[1]:
        steps.append("allow more time (--time-limit)")
    if record["ended"] == "memory limit":
        steps.append("allow more memory (--memory-limit)")
    if nothing_learnt(record):
        if not record["tried"]:
            steps.append("try other kernels (--kernel auto)")
        steps.append("check whether columns were read as they were meant, and look for columns that say more")
        steps.append("until then, predict the mean")
    elif stopped_before_test(record):
        pass  # what comes first is said
    elif not record["scores"]:
        steps.append("keep some rows back to test (--test-fraction 0.15)")
    elif quality.kind == "good":
        steps.append("predict new rows (nearexact predict)")
    elif record["rows_test"] < FEW_TEST_ROWS:
        steps.append("collect more rows, or keep more of them back (--test-fraction)")
    elif quality.kind == "bad":
        other = "" if record["tried"] else "try other kernels (--kernel auto), or "
        steps.append(f"{other}take the linear model")
    else:
        steps.append("take the simpler model if it is as good, or look for columns that say more")
    if intervals.kind == "bad" and not nothing_learnt(record):
        steps.append("do not rely on its intervals, and look at the chart of residuals for outliers")
        if _has_few_rows(record) and record["inputs"] > 1:
            steps.append("leave out columns that cannot matter (--ignore): among many, some seem to explain the noise")
    text = f"{'; '.join(steps)}."
    return _answer_to("What to do next?")("", "plain", text[0].upper() + text[1:])


def _answer_to(question: str) -> Callable[[str, Kind, str], Conclusion]:
    return lambda word, kind, text: Conclusion(question, word, kind, text)
