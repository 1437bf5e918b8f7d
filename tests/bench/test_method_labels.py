"""Labels of methods: written and read back, split at the right commas, refused with a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearexact.bench import method_labels

TEXTS = st.text('ab1.,{}="\\ \n\té-+e', max_size=10)  # with all that has a meaning in labels
VALUES = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS)
NAMES = st.text("az_09./:-", min_size=1, max_size=10)
OPTIONS = st.dictionaries(st.text("az_09", min_size=1, max_size=5), VALUES, max_size=4)


@given(NAMES, OPTIONS)
def test_a_label_is_read_back(name: str, options: dict[str, object]) -> None:
    text = method_labels.label(name, options)
    assert method_labels.parse(text) == (name, options)
    assert {key: type(value) for key, value in method_labels.parse(text)[1].items()} == {
        key: type(value) for key, value in options.items()
    }
    assert method_labels.base_name(text) == name
    assert method_labels.label(name, dict(reversed(options.items()))) == text


@given(st.lists(st.tuples(NAMES, OPTIONS), min_size=1, max_size=4))
def test_a_list_of_labels_is_split_into_these(methods: list[tuple[str, dict[str, object]]]) -> None:
    labels = [method_labels.label(name, options) for name, options in methods]
    assert method_labels.split(", ".join(labels)) == labels


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("sgpr", {}),
        ("sgpr{}", {}),
        ("sgpr{kernel=se+linear, max_inducing=500}", {"kernel": "se+linear", "max_inducing": 500}),
        ('sgpr{a="500", b="x, {y}=z", c=true, d=1e-4}', {"a": "500", "b": "x, {y}=z", "c": True, "d": 1e-4}),
        ("sgpr{kernel=se * linear, limit=inf, day=2020-01-01}", {"kernel": "se * linear", "limit": math.inf,
                                                               "day": "2020-01-01"}),
    ],
)  # fmt: skip
def test_what_users_write_is_understood(text: str, options: dict[str, object]) -> None:
    assert method_labels.parse(text) == ("sgpr", options)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a method is name or name{option=value,…}, got ''"),
        ("{a=1}", "a method is name or name"),
        ("sgpr}", "a method is name or name"),
        ("sgpr{a=1", "end with a brace"),
        ("sgpr{a}", r"written name=value with commas between, got 'a' in 'sgpr\{a\}'"),
        ("sgpr{a=}", "written name=value"),
        ("sgpr{a=1,a=2}", "the option 'a' is given twice"),
        ('sgpr{a="1}', "written name=value"),
    ],
)
def test_what_is_no_label_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("{option", r"\{option").replace(",…}", r",…\}")):
        method_labels.parse(text)


def test_lists_do_not_fit_into_a_label() -> None:
    with pytest.raises(ValueError, match=r"the option 'ms' must be a number, true, false or a text .* got \[1, 2\]"):
        method_labels.label("sgpr", {"ms": [1, 2]})
