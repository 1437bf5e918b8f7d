"""Tables as files: CSV with all digits, Markdown and LaTeX (booktabs) as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from nearexact import files

Format = Callable[[Any], str]
NOT_AVAILABLE = "n/a"
_NUMBER = re.compile(r"(-?\d[\d.]*)(?:e(-?\d+))?( [±(\[†].*)?", re.DOTALL)
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "−": "$-$", "–": "--", "±": r"$\pm$", "†": r"$^\dagger$",
    "θ": r"$\theta$", "τ": r"$\tau$", "×": r"$\times$", "≤": r"$\le$",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ReportTable:
    """A table of the report.

    `frame` has the numbers, `shown` the text of its cells if the formats cannot make it. `details` are further columns,
    such as standard errors, that only the CSV file has. `bold` says which cells are the best.
    """

    name: str  # of its files, without suffix
    title: str
    frame: pd.DataFrame
    headings: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, Format] = field(default_factory=dict)
    shown: pd.DataFrame | None = None
    details: pd.DataFrame | None = None
    bold: pd.DataFrame | None = None

    def heading(self, column: str) -> str:
        """The heading that readers see instead of a column's name."""
        return self.headings.get(column, column)

    def texts(self) -> pd.DataFrame:
        """All cells as readers see them."""
        if self.shown is not None:
            return self.shown
        return pd.DataFrame(
            {column: [self.formats.get(column, plain)(value) for value in self.frame[column]] for column in self.frame}
        )

    def numeric(self) -> list[int]:
        """The positions of the columns that hold numbers."""
        return [k for k, column in enumerate(self.frame) if pd.api.types.is_numeric_dtype(self.frame[column])]

    def to_csv(self) -> str:
        """The numbers with all digits."""
        frame = self.frame.reset_index(drop=True)
        if self.details is not None:
            frame = pd.concat([frame, self.details.reset_index(drop=True)], axis=1)
        text: str = frame.to_csv(index=False, lineterminator="\n")
        return text

    def is_bold(self, row: int, column: int) -> bool:
        """Whether a cell is one of the best."""
        name = self.frame.columns[column]
        return self.bold is not None and name in self.bold and bool(self.bold[name].iloc[row])

    def _cells(self, escaped: Format, bold: Format) -> list[list[str]]:
        """The texts of all cells, escaped, and the best ones bold."""
        rows = self.texts().itertuples(index=False, name=None)
        return [
            [bold(escaped(text)) if self.is_bold(k, j) else escaped(text) for j, text in enumerate(row)]
            for k, row in enumerate(rows)
        ]

    def to_markdown(self) -> str:
        """The cells as readers see them, in GitHub's form of Markdown."""
        numeric = set(self.numeric())
        lines = [[_markdown(self.heading(column)) for column in self.frame]]
        lines += [["---:" if k in numeric else "---" for k in range(len(lines[0]))]]
        lines += self._cells(_markdown, lambda text: f"**{text}**")
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def to_latex(self) -> str:
        r"""A `tabular` with the rules of booktabs, for `\input`; lines between data sets."""
        numeric = set(self.numeric())
        columns = "".join("r" if k in numeric else "l" for k in range(len(self.frame.columns)))
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [" & ".join(latex(self.heading(column)) for column in self.frame) + r" \\", r"\midrule"]
        group = self.frame["dataset"].tolist() if "dataset" in self.frame else [""] * len(self.frame)
        for k, row in enumerate(self._cells(latex, lambda text: rf"\textbf{{\boldmath {text}}}")):
            if k and group[k] != group[k - 1]:
                lines.append(r"\midrule")
            lines.append(" & ".join(row) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def write(self, folder: Path) -> None:
        """Write its three files."""
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in ((".csv", self.to_csv()), (".md", self.to_markdown()), (".tex", self.to_latex())):
            files.write_text(folder / f"{self.name}{suffix}", text)


# ---- cells -----------------------------------------------------------------------------------------------------------


def number(decimals: int, largest: float) -> Format:
    """A format with this number of decimals; numbers beyond the largest, which have exploded, get an exponent."""

    def show(value: Any) -> str:
        if not isinstance(value, (int, float)) or math.isnan(value):
            return NOT_AVAILABLE
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        if abs(value) >= largest:
            return scientific(value)
        text = f"{value:.{decimals}f}"
        return text.removeprefix("-") if float(text) == 0.0 else text

    return show


def scientific(value: Any) -> str:
    """Two digits and an exponent: 3.1e9."""
    if not isinstance(value, (int, float)) or math.isnan(value):
        return NOT_AVAILABLE
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def significant(value: Any) -> str:
    """Three significant digits, for costs and distances of any size; text as it is."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return plain(value)
    if not math.isfinite(value) or (value and not 1e-4 <= abs(value) < 1e5):
        return scientific(value)
    if abs(value) >= 100.0 or value == 0.0:
        return f"{value:.0f}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def uncertainty(value: float) -> str:
    """A standard error: two significant digits."""
    if not 1e-4 <= abs(value) < 1e5:
        return scientific(value) if value else "0"
    return f"{value:.{max(1 - math.floor(math.log10(abs(value))), 0)}f}"


def cost(value: Any) -> str:
    """A cost; "never" if the goal was not reached."""
    return "never" if isinstance(value, float) and math.isinf(value) else significant(value)


def whole(value: Any) -> str:
    """A count, without decimals."""
    return NOT_AVAILABLE if value is None or value != value else f"{value:.0f}"


def plain(value: Any) -> str:
    """Text as it is."""
    return NOT_AVAILABLE if value is None or value != value else str(value)


def latex(text: str) -> str:
    """Text for LaTeX: numbers in mathematics, everything else escaped."""
    match = _NUMBER.fullmatch(text)
    if match:
        exponent = rf"\times 10^{{{match[2]}}}" if match[2] else ""
        return f"${match[1]}{exponent}${latex(match[3]) if match[3] else ''}"
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split(" "))).replace("\n", " ")


def _markdown(text: str) -> str:
    """Text that no Markdown renderer takes for markup."""
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;")).replace("\n", " ")
