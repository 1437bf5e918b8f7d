"""Tables as people keep them, and the real command."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from nearexact.cli import main

QUICK = ["--kernel", "se", "--time-limit", "20s", "--no-refit"]


def command(*arguments: object, program: tuple[str, ...] = ("-m", "nearexact.cli")) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *program, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)


def houses(n: int = 240, seed: int = 0) -> pd.DataFrame:
    """A table as people keep them: names, dates, yes and no, and numbers."""
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 1500, size=n)
    frame = pd.DataFrame(
        {
            "size": np.round(rng.uniform(30.0, 200.0, size=n), 2),
            "city": rng.choice(["Aachen", "Köln", "Münster"], size=n),
            "sold on": pd.to_datetime("2019-01-01") + pd.to_timedelta(days, unit="D"),
            "new": rng.choice(["yes", "no"], size=n),
            "remark": 'nice; "big"\nand green',
        }
    )
    by_city = frame["city"].map({"Aachen": 1.0, "Köln": 1.3, "Münster": 1.6}).to_numpy()
    price = 10.0 * frame["size"].to_numpy() * by_city + 300.0 * (frame["new"] == "yes").to_numpy() + 0.2 * days
    return frame.assign(price=np.round(price + 20.0 * rng.normal(size=n), 2))


def messy(frame: pd.DataFrame) -> bytes:
    """Semicolons, decimal commas, German dates, quoted newlines, Windows line ends and a byte order mark."""
    written = frame.assign(**{"sold on": frame["sold on"].dt.strftime("%d.%m.%Y")})
    text = written.to_csv(index=False, sep=";", decimal=",", lineterminator="\r\n", na_rep="NA")
    return text.encode("utf-8-sig")


def assert_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The mistake is named in one line, and the status is 2."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("nearexact: ")
    assert len([line for line in output.err.splitlines() if line.startswith("nearexact: ")]) == 1
    assert "Traceback" not in output.err


def assert_nothing_is_overwritten(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command says in one line that an output would take the place of another file, and changes none."""
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    assert main(arguments) == 2
    assert re.fullmatch(r"nearexact: the \w+ '.*' would overwrite the \w+ '.*'\n", capsys.readouterr().err)
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


def damaged_files() -> st.SearchStrategy[bytes]:
    """Bytes, text, and tables that were good once."""
    new = houses(20, seed=2)
    parquet = io.BytesIO()
    new.to_parquet(parquet)
    good = [messy(new), new.to_csv(index=False).encode(), gzip.compress(messy(new), mtime=0), parquet.getvalue()]

    @st.composite
    def spoilt(draw: Callable[[st.SearchStrategy[object]], object]) -> bytes:
        data = bytearray(draw(st.sampled_from(good)))  # type: ignore[arg-type]
        for _ in range(draw(st.integers(1, 4))):  # type: ignore[call-overload]
            at = draw(st.integers(0, max(len(data) - 1, 0)))
            match draw(st.sampled_from(["cut", "put", "change"])):
                case "cut":
                    del data[at : at + draw(st.integers(1, 200))]  # type: ignore[operator, misc]
                case "put":
                    data[at:at] = draw(st.sampled_from([b'"', b"\n", b";", b",", b"\0", b"\xff", b"\r", b"\x1b[31m"]))  # type: ignore[misc, call-overload]
                case _ if at < len(data):  # type: ignore[operator]
                    data[at] = draw(st.integers(0, 255))  # type: ignore[index, assignment]
        return bytes(data)

    return st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), spoilt())
