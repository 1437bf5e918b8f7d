"""What README and `examples/` show works as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_demo_prints_bounds_that_close_in_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--output", str(picture)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    exact = float(re.search(r"exact log marginal likelihood (-?[\d.]+)", output)[1])  # type: ignore[index]
    rows = [
        tuple(map(float, line.split()))
        for line in output.splitlines()
        if re.match(r"\s*\d+\s+-?[\d.]+\s+-?[\d.]+$", line)
    ]
    assert len(rows) >= 8
    assert all(elbo <= exact + 1e-3 <= upper + 2e-3 for _, elbo, upper in rows)
    gaps = [upper - elbo for _, elbo, upper in rows]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.1
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_readme_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    elbo, upper = map(float, re.search(r"(-?[\d.]+) <= log marginal likelihood <= (-?[\d.]+)", printed).groups())  # type: ignore[union-attr]
    assert elbo <= upper
