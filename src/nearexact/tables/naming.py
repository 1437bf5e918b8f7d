"""Columns by name in messages about a table."""

from __future__ import annotations

from collections.abc import Sequence

from nearexact.tables.columns import problem

NAMED_AT_MOST = 10  # columns in a message
MISSING_ADVICE = "pass --missing drop or --missing median, or fill them in"


def missing_values(counts: dict[str, int], where: str = "", advice: str = MISSING_ADVICE) -> ValueError:
    """An error that says which columns have how many missing cells, and what to do about it."""
    named = [f"{name!r} ({count})" for name, count in counts.items() if count]
    more = f" and {len(named) - NAMED_AT_MOST} more" if len(named) > NAMED_AT_MOST else ""
    fact = f"missing values in {', '.join(named[:NAMED_AT_MOST])}{more}{where}"
    return problem(fact, advice)


def listed(what: str, names: Sequence[str]) -> str:
    """All of them, after what they are."""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def some(names: Sequence[str]) -> str:
    """The first of many, and how many more there are."""
    more = f" and {len(names) - 2 * NAMED_AT_MOST} more" if len(names) > 2 * NAMED_AT_MOST else ""
    return ", ".join(map(repr, names[: 2 * NAMED_AT_MOST])) + more


def reasons(left_out: dict[str, str]) -> str:
    """Why columns are left out, in brackets."""
    return f" ({', '.join(f'{name!r} is {reason}' for name, reason in left_out.items())})" if left_out else ""
