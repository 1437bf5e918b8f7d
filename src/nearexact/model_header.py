"""What a model file says about its model, read and checked without torch, which takes seconds to import.

Arrays are left alone: `persistence` makes an estimator of them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from nearexact.certificate import NEAR_EXACT, Certificate
from nearexact.evidence import Evidence
from nearexact.limits import is_out_of_memory
from nearexact.model_file import HEADER, check_bytes

FORMAT = "fitted estimator"
VERSION = 3
WITH_ROWS = 4  # of models with several targets, or with noise of each row: earlier releases cannot read them
READABLE = (1, 2, 3, 4)
WITHOUT_PARTS = 1  # the version that had neither the parts of a certificate's gap nor the lower bound of a stage
WITH_CHECKSUM = WITH_METADATA = WITH_STAGE_ENDS = WITH_POSTERIOR = WITH_EVIDENCE = 3  # the first version that has them
EARLIER_FIELDS = {"elbo": "objective", "scheduled": "scheduled_m"}  # of a stage, and what they are called now

# What the header says about the model itself, in any version.
ENTRIES = (
    "format", "version", "estimator", "posterior", "settings", "kernel", "noise_variance", "elbo", "upper_bound",
    "certificate", "history", "feature_names", "weight_unit", "sums",
)  # fmt: skip

SPARSE, EXACT, ITERATIVE = "sparse", "exact", "iterative"  # kinds of posterior
METHODS = {SPARSE: "sparse", EXACT: "cholesky", ITERATIVE: "iterative"}  # what estimators call them
# The arrays of a posterior, by their names in it, and those of the two scalings.
ARRAYS = {
    SPARSE: ("Z", "L", "L_B", "weights"),
    EXACT: ("X", "centre", "y", "weights"),
    ITERATIVE: ("X", "y", "weights", "Z", "L", "L_B", "extrapolation"),
}
EXACT_FACTOR = "L"  # is computed again when a file is read: N² numbers are gigabytes. Earlier files have it.
NOISE_ARRAYS = {"noise_factors": "factors", "known_noise": "known"}  # of models that hold the noise of their rows
SCALING_ARRAYS = ("shift_X", "scale_X", "shift_y", "scale_y")

ROUNDING = 1e-4  # nats per point by which rounding may put a lower bound above an upper one


@dataclass(frozen=True)
class ModelHeader:
    """The header of a model file, and the shapes of its arrays by name."""

    entries: dict[str, Any]
    shapes: dict[str, list[int]]

    @property
    def version(self) -> int:
        version: int = self.entries["version"]
        return version

    @property
    def method(self) -> str:
        """How the model predicts: `method_` of the estimator."""
        return METHODS[self.entries["posterior"]]

    @property
    def inputs(self) -> int:
        return self.shapes["shift_X"][0]

    @property
    def inducing_points(self) -> int:
        """How many; of an exact GP all rows are."""
        return self.shapes["Z" if "Z" in self.shapes else "X"][0]

    @property
    def metadata(self) -> dict[str, Any]:
        """What other layers keep with the model."""
        if self.version < WITH_METADATA:  # it stands among the model's own entries
            return {key: value for key, value in self.entries.items() if key not in ENTRIES}
        return dict(self.entries["metadata"])

    def certificate(self) -> Certificate:
        """The certificate; a ValueError if it is none."""
        description = self.entries["certificate"]
        certificate = Certificate(**{**description, "evidence": _evidence(description.get("evidence"))})
        if self.version < WITH_EVIDENCE and certificate.verdict in NEAR_EXACT:  # only the bounds speak for it
            certificate = replace(certificate, verdict="not reached")
        lower, upper = number(certificate.lower), number(certificate.upper)
        finite(certificate.elbo)
        if certificate.known_estimate is not None:
            finite(certificate.estimate), finite(certificate.standard_error)
        if not lower <= upper + ROUNDING * count(certificate.n):
            raise ValueError(f"its lower bound {lower} is above its upper bound {upper}")
        repr(certificate)  # raises an error if something else in it is not what it should be
        return certificate

    def stages(self) -> list[dict[str, Any]]:
        """The fields of the stages. Earlier versions had other names for some of them."""
        return [
            {EARLIER_FIELDS.get(name, name): value for name, value in description.items()}
            for description in self.entries["history"]
        ]


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever a damaged or hostile file leads to becomes a ValueError that names the file."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ValueError(f"there is not enough memory to load {os.fspath(path)!r}") from error
        raise ValueError(
            f"{os.fspath(path)!r} is not a model file of nearexact, or is damaged: {type(error).__name__}: {error}"
        ) from error


def read_header(path: str | os.PathLike[str]) -> ModelHeader:
    """The header of a model file, whose checksum and shapes are right."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no model file {os.fspath(path)!r}")
    with open(path, "rb") as content:
        has_checksum = check_bytes(content)
    with safe_open(path, framework="np") as file:
        entries = _checked(json.loads((file.metadata() or {}).get(HEADER, "{}")), has_checksum)
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    _check_shapes(entries["posterior"], shapes)
    return ModelHeader(entries, shapes)


def _checked(header: Any, has_checksum: bool) -> dict[str, Any]:
    """The header, if it is one that this release reads."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("it holds something else")
    version = header["version"]
    if version not in READABLE:
        versions = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
        raise ValueError(f"its version is {version}, this release reads versions {versions}")
    if has_checksum != (version >= WITH_CHECKSUM):
        raise ValueError(f"its version is {version}, which does not go with {'a' if has_checksum else 'no'} checksum")
    if version < WITH_POSTERIOR:
        header["posterior"] = SPARSE if header["estimator"] == "SGPRegressor" else EXACT
    if header["posterior"] not in ARRAYS:
        raise ValueError(f"there is no posterior {header['posterior']!r}")
    return header


def _check_shapes(posterior: str, shapes: Mapping[str, list[int]]) -> None:
    """Raise a ValueError unless the arrays are those of the posterior, of sizes that go together."""
    names = ARRAYS[posterior] + SCALING_ARRAYS
    optional = {EXACT_FACTOR} if posterior == EXACT else set()
    if posterior != SPARSE and set(NOISE_ARRAYS) <= set(shapes):
        optional |= set(NOISE_ARRAYS)
    if set(shapes) - optional != set(names):
        raise ValueError(f"its arrays are {sorted(shapes)} instead of {sorted(names)}")
    n, targets, d = math.prod(shapes["weights"][:1]), list(shapes["weights"][1:2]), math.prod(shapes["shift_X"])
    m = math.prod(shapes["Z"][:1]) if posterior == ITERATIVE else n
    if n < 1 or m < 1 or d < 1 or 0 in targets:
        raise ValueError(f"it has {n} weights, {m} points and {d} inputs")
    extrapolation = math.prod(shapes.get("extrapolation", []))  # `persistence` knows how many there should be
    expected = {
        "weights": [n, *targets], "L": [m, m], "L_B": [m, m], "Z": [m, d], "X": [n, d], "centre": [d],
        "y": [n, *targets], "extrapolation": [extrapolation], "shift_X": [d], "scale_X": [d], "shift_y": targets,
        "scale_y": targets, "noise_factors": [n], "known_noise": [n],
    }  # fmt: skip
    for name, shape in shapes.items():
        if list(shape) != expected[name]:
            raise ValueError(f"{name} has shape {shape} instead of {expected[name]}")


def _evidence(entries: dict[str, Any] | None) -> Evidence | None:
    """What speaks for θ. Files have said NaN for a gain that is not known."""
    if entries is None:
        return None
    gain = entries["gain_per_row"]
    return Evidence(**{**entries, "gain_per_row": None if gain is None or math.isnan(gain) else gain})


def number(value: Any) -> float:
    """A number, which may be infinite: a bound that could not be computed is."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value)


def finite(value: Any) -> float:
    """A number that is not infinite."""
    if not math.isfinite(number(value)):
        raise ValueError(f"expected a finite number, got {value!r}")
    return float(value)


def positive(value: Any) -> float:
    """A finite number above 0."""
    if finite(value) <= 0.0:
        raise ValueError(f"expected a positive number, got {value!r}")
    return float(value)


def count(value: Any) -> int:
    """A whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected a whole number of at least 1, got {value!r}")
    return value
