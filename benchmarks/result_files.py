"""Files with what the benchmarks have measured, in `results/` next to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("results")


def earlier(name: str) -> Any:
    """What earlier runs have left in this file; None if there is none."""
    path = FOLDER / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write(name: str, results: object) -> None:
    """Replace the file."""
    (FOLDER / name).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
