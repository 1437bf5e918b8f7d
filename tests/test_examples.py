"""What README, docs and `examples/` show works as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_demo_certifies_both_data_sets_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--output", str(picture)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    for part in output.split("Diabetes"):
        bounds = re.search(r"certified: (-[\d.]+) <= log marginal likelihood <= (-[\d.]+)", part)
        exact = re.search(r"exact GP with its own hyperparameters: log marginal likelihood (-[\d.]+)", part)
        assert bounds is not None
        assert exact is not None
        assert float(bounds[1]) <= float(bounds[2])
        # The exact GP's own optimum may be a little worse or better: both are found from one start.
        assert abs(float(bounds[1]) - float(exact[1])) < 1.0
        rows = [line.split() for line in part.splitlines() if re.match(r"\s*\d+\s+-[\d.]+\s+-[\d.]+\s", line)]
        elbos, uppers = ([float(row[column]) for row in rows] for column in (1, 2))
        assert len(rows) >= 3
        assert elbos == sorted(elbos)
        assert all(elbo <= upper for elbo, upper in zip(elbos, uppers, strict=True))
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(("option", "way"), [([], "by BoTorch"), (["--torch"], "by torch")])
def test_bayesian_optimisation_comes_near_the_maximum(option: list[str], way: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "botorch_surrogate.py"), *option]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    best = re.search(way + r": best value (-[\d.]+) after 22 evaluations", output)
    assert best is not None
    assert -3.0 < float(best[1]) <= -0.3978  # of ten random places the best is far below


@pytest.mark.parametrize(
    ("document", "n_examples"),
    [("README.md", 3), ("docs/kernels.md", 2), ("docs/models.md", 1), ("docs/known-noise.md", 1)],
)
def test_code_in_documents_runs(
    document: str,
    n_examples: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == n_examples
    for block in blocks:
        quick = re.sub(r"\b[12]000\b", "300", block).replace('"10s"', '"3s"')
        exec(compile(quick, document, "exec", dont_inherit=True), {"__name__": "__main__"})
        output = capsys.readouterr().out
        bounds = re.search(r"(-?[\d.]+) <= log marginal likelihood <= (-?[\d.]+)", output)
        assert bounds is not None or ": log marginal likelihood -" in output  # an exact GP needs no bounds
        assert bounds is None or float(bounds[1]) <= float(bounds[2])
