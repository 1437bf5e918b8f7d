"""Pages are one file, whatever names and numbers are put into them."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearexact import pages

HOSTILE = "</script><script>alert(1)</script>&\u2028"


@given(st.text(max_size=30))
def test_json_comes_back_as_it_was_and_cannot_end_its_script(text: str) -> None:
    block = str(pages.as_json({text: [text, HOSTILE]}))
    assert not set("<>&") & set(block)
    assert json.loads(block) == {text: [text, HOSTILE]}


def test_numbers_are_rounded_and_what_is_none_is_null() -> None:
    data = {
        "a": np.array([1.0, math.nan, -math.inf]),
        "b": (np.float64(1 / 3), 12345678.0, True, None),
        "c": np.int64(3),
    }
    assert json.loads(pages.as_json(data)) == {"a": [1, None, None], "b": [0.33333, 12346000, True, None], "c": 3}


def test_a_page_escapes_names_and_brings_everything_along() -> None:
    page = pages.render("base.html", title=HOSTILE, charts=True)
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.findall(r"<(?:script|img|iframe)[^>]*\bsrc=|<link[^>]*href=\"(?!data:)", page)


@pytest.mark.parametrize("charts", [False, True])
def test_the_policy_names_exactly_the_scripts_of_the_page(charts: bool) -> None:
    page = pages.render("base.html", title="t", charts=charts)
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    scripts += re.findall(r'<script type="text/plain" id="plotly">(.*?)</script>', page, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert len(scripts) == (3 if charts else 1)
    assert re.findall(r"sha256-([^&]+)&", policy[1]) == hashes
    assert "default-src &#39;none&#39;" in policy[1]
