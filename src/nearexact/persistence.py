"""Fitted estimators in one file, without pickle: arrays and a JSON header in the safetensors format.

Reading a file executes nothing that is in it: estimators and kernels are looked up by name among those of this package.
Since version 3 a checksum over the whole file makes sure that not one bit of it has changed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open

from nearexact import kernels
from nearexact.certificate import NEAR_EXACT, Certificate
from nearexact.evidence import Evidence
from nearexact.files import replacing
from nearexact.gp.exact import ExactObjective, exact_memory
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.neighbours import SIZES
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.safety import Repairs
from nearexact.gp.stages import Stage, StageEnd
from nearexact.kernels import Kernel
from nearexact.kernels.composite import Composite
from nearexact.kernels.names import named_kernel
from nearexact.kernels.parameter_bounds import CheckedBounds
from nearexact.limits import free_memory, is_out_of_memory
from nearexact.model_file import HEADER, check_bytes, write_file
from nearexact.scaling import Scaling

if TYPE_CHECKING:
    from nearexact.estimators import GPRegressor, SGPRegressor

FORMAT = "fitted estimator"
VERSION = 3
READABLE = (1, 2, 3)
WITHOUT_PARTS = 1  # the version that had neither the parts of a certificate's gap nor the lower bound of a stage
WITH_CHECKSUM = WITH_METADATA = WITH_STAGE_ENDS = WITH_POSTERIOR = WITH_EVIDENCE = 3  # the first version that has them
EARLIER_FIELDS = {"elbo": "objective", "scheduled": "scheduled_m"}  # of a stage, and what they are called now

# What the header says about the model itself, in all versions.
ENTRIES = (
    "format", "version", "estimator", "posterior", "settings", "kernel", "noise_variance", "elbo", "upper_bound",
    "certificate", "history", "feature_names",
)  # fmt: skip

# The arrays of a posterior, by their names in it, and those of the two scalings.
Posterior = SparsePosterior | ExactPosterior | IterativePosterior
SPARSE, EXACT, ITERATIVE = "sparse", "exact", "iterative"  # kinds of posterior
KINDS: dict[type[Posterior], str] = {SparsePosterior: SPARSE, ExactPosterior: EXACT, IterativePosterior: ITERATIVE}
METHODS: dict[type[Posterior], str] = {
    SparsePosterior: "sparse", ExactPosterior: "cholesky", IterativePosterior: "iterative",
}  # fmt: skip
ARRAYS = {
    SPARSE: ("Z", "L", "L_B", "weights"),
    EXACT: ("X", "centre", "y", "weights"),
    ITERATIVE: ("X", "y", "weights", "Z", "L", "L_B", "extrapolation"),
}
EXACT_FACTOR = "L"  # is computed again when a file is read: N² numbers are gigabytes. Earlier files have it.
SCALING_ARRAYS = ("shift_X", "scale_X", "shift_y", "scale_y")
CHOLESKY_FACTORS = ("L", "L_B")

ROUNDING = 1e-4  # nats per point by which rounding may put a lower bound above an upper one


def save(estimator: SGPRegressor | GPRegressor, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator. A file that is already there is replaced only once the new one is complete."""
    posterior = estimator._posterior
    if type(estimator).__module__ != "nearexact.estimators":
        raise ValueError(f"only SGPRegressor and GPRegressor themselves can be saved, got {type(estimator).__name__}")
    kind = KINDS[type(posterior)]
    arrays = {name: getattr(posterior, name).detach().cpu().numpy() for name in ARRAYS[kind]}
    for name, scaling in (("X", estimator._scaling_X), ("y", estimator._scaling_y)):
        arrays |= {f"shift_{name}": np.asarray(scaling.shift), f"scale_{name}": np.asarray(scaling.scale)}
    settings = estimator.get_params(deep=False)
    if isinstance(settings["kernel"], Kernel):  # else a name, or None
        settings["kernel"] = _describe(settings["kernel"])
    if not isinstance(settings["random_state"], (int, np.integer, type(None))):
        settings["random_state"] = None  # a generator has a state of its own, which does not belong to the model
    settings["device"] = str(settings["device"])
    header = {
        "format": FORMAT,
        "version": VERSION,
        "estimator": type(estimator).__name__,
        "posterior": kind,
        "settings": settings,
        "kernel": _describe(estimator.kernel_),
        "noise_variance": estimator.noise_variance_,
        "elbo": estimator.elbo_,
        "upper_bound": estimator.upper_bound_,
        "certificate": asdict(estimator.certificate_),
        "history": [
            {**vars(stage), "kernel": _describe(stage.kernel), "repairs": asdict(stage.repairs)}
            for stage in estimator.history_
        ],
        "feature_names": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "metadata": getattr(estimator, "metadata_", {}),
    }
    if isinstance(posterior, IterativePosterior):
        header["residual_bound"] = posterior.residual_bound
    try:
        text = json.dumps(header, default=_plain)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the model holds something that cannot be saved: {error}") from error
    with replacing(path) as temporary, temporary.open("wb") as file:
        write_file(file, text, arrays)


def load(path: str | os.PathLike[str]) -> SGPRegressor | GPRegressor:
    """The estimator that `save` wrote. It predicts, to the bit, as the saved one; training data are not in the file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no model file {os.fspath(path)!r}")
    try:
        with open(path, "rb") as content:
            has_checksum = check_bytes(content)
        with safe_open(path, framework="pt") as file:
            header = _header(json.loads((file.metadata() or {}).get(HEADER, "{}")), has_checksum)
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            _check_shapes(header["posterior"], shapes)
            # Copied, so that the memory is aligned as it was when fitted: rounding depends on that.
            arrays = {name: _check_numbers(name, file.get_tensor(name).clone()) for name in shapes}
        return _rebuild(header, arrays)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged or hostile file leads to
        if is_out_of_memory(error):
            raise ValueError(f"there is not enough memory to load {os.fspath(path)!r}") from error
        raise ValueError(
            f"{os.fspath(path)!r} is not a model file of nearexact, or is damaged: {type(error).__name__}: {error}"
        ) from error


def contiguous(posterior: Posterior) -> Posterior:
    """The same with arrays laid out as they are after loading: rounding depends on that."""
    kind = KINDS[type(posterior)]
    names = (*ARRAYS[kind], EXACT_FACTOR) if kind == EXACT else ARRAYS[kind]
    arrays: dict[str, Any] = {name: getattr(posterior, name).contiguous() for name in names}
    return replace(posterior, **arrays)


# ---- from a file to an estimator; what goes wrong here is reported by `load` -----------------------------------------


def _header(header: Any, has_checksum: bool) -> dict[str, Any]:
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
    if set(shapes) - ({EXACT_FACTOR} if posterior == EXACT else set()) != set(names):
        raise ValueError(f"its arrays are {sorted(shapes)} instead of {sorted(names)}")
    n, d = math.prod(shapes["weights"]), math.prod(shapes["shift_X"])
    m = math.prod(shapes["Z"][:1]) if posterior == ITERATIVE else n
    if n < 1 or m < 1 or d < 1:
        raise ValueError(f"it has {n} weights, {m} points and {d} inputs")
    expected = {
        "weights": [n], "L": [m, m], "L_B": [m, m], "Z": [m, d], "X": [n, d], "centre": [d], "y": [n],
        "extrapolation": [len(SIZES) + 1], "shift_X": [d], "scale_X": [d], "shift_y": [], "scale_y": [],
    }  # fmt: skip
    for name, shape in shapes.items():
        if list(shape) != expected[name]:
            raise ValueError(f"{name} has shape {shape} instead of {expected[name]}")


def _check_numbers(name: str, array: torch.Tensor) -> torch.Tensor:
    if array.dtype != torch.float64 or not torch.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers of 64 bits")
    positive = array.diagonal() if name in CHOLESKY_FACTORS else array if name.startswith("scale_") else None
    if positive is not None and not (positive > 0.0).all():
        raise ValueError(f"{name} must hold positive numbers")
    return array


def _rebuild(header: dict[str, Any], arrays: dict[str, torch.Tensor]) -> SGPRegressor | GPRegressor:
    from nearexact import estimators  # here, since estimators save themselves with this module

    settings = dict(header["settings"])
    if isinstance(settings["kernel"], dict):
        settings["kernel"] = _kernel(settings["kernel"])
    elif settings["kernel"] is not None:
        named_kernel(settings["kernel"])  # raises an error if there is none of this name
    classes = {cls.__name__: cls for cls in (estimators.SGPRegressor, estimators.GPRegressor)}
    estimator: SGPRegressor | GPRegressor = classes[header["estimator"]](**settings)
    scalings = [Scaling(arrays[f"shift_{name}"].numpy(), arrays[f"scale_{name}"].numpy()) for name in "Xy"]
    estimator._scaling_X, estimator._scaling_y = scalings
    m, d = len(arrays["weights"]), len(arrays["shift_X"])
    kernel, noise_variance = _kernel(header["kernel"]).for_inputs(d), _positive(header["noise_variance"])
    estimator._posterior = _posterior(header, arrays, kernel, noise_variance)
    estimator._problem, estimator.search_ = None, []
    estimator.kernel_, estimator.noise_variance_ = kernel, noise_variance
    estimator.inducing_points_ = scalings[0].undo(estimator._posterior.inducing_points.numpy())
    estimator.elbo_, estimator.upper_bound_ = _finite(header["elbo"]), _number(header["upper_bound"])
    estimator.certificate_ = _certificate(header["certificate"], header["version"])
    estimator.method_ = METHODS[type(estimator._posterior)]
    estimator.history_ = [_stage(stage, header["version"]) for stage in header["history"]]
    n = estimator.certificate_.n
    if m > n or (header["posterior"] != SPARSE and m != n) or any(s.n != n for s in estimator.history_):
        raise ValueError(f"a model of {n} rows cannot have {m} points, or a history of other rows")
    estimator.n_features_in_ = d
    if header["feature_names"]:
        names = header["feature_names"]
        if not isinstance(names, list) or len(names) != d or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{d} inputs need as many names, got {names!r}")
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if header["version"] < WITH_METADATA:  # what other layers kept with the model stands among its own entries
        estimator.metadata_ = {key: value for key, value in header.items() if key not in ENTRIES}
    else:
        estimator.metadata_ = dict(header["metadata"])
    return estimator


def _posterior(
    header: dict[str, Any], arrays: dict[str, torch.Tensor], kernel: Kernel, noise_variance: float
) -> Posterior:
    kind: str = header["posterior"]
    parts: dict[str, Any] = {name: arrays[name] for name in ARRAYS[kind]}
    parts |= {"kernel": kernel, "noise_variance": noise_variance, "repairs": Repairs()}
    if kind == SPARSE:
        return SparsePosterior(**parts)
    if kind == ITERATIVE:
        bound = _finite(header["residual_bound"])
        if bound < 0.0:
            raise ValueError(f"expected a residual bound that is not negative, got {bound}")
        return IterativePosterior(residual_bound=bound, **parts)
    if EXACT_FACTOR in arrays:
        features = kernel.features(parts["X"], parts["centre"])
        return ExactPosterior(features_X=features, L=arrays[EXACT_FACTOR], jitter=0.0, **parts)
    n = len(parts["X"])
    needed, free = exact_memory(kernel, n), free_memory(parts["X"].device)
    if needed > free:
        raise MemoryError(f"an exact GP of {n} rows needs {needed / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free")
    computed = ExactObjective(kernel, noise_variance, parts["X"], parts["y"]).factorise(kernel, noise_variance)
    exact = replace(computed, centre=parts["centre"], weights=parts["weights"])
    return contiguous(exact)


def _certificate(description: dict[str, Any], version: int) -> Certificate:
    evidence = description.get("evidence")
    certificate = Certificate(**{**description, "evidence": None if evidence is None else Evidence(**evidence)})
    if version < WITH_EVIDENCE and certificate.verdict in NEAR_EXACT:  # which nothing but the bounds speaks for
        certificate = replace(certificate, verdict="not reached")
    lower, upper = _number(certificate.lower), _number(certificate.upper)
    _finite(certificate.elbo)
    if certificate.known_estimate is not None:
        _finite(certificate.estimate), _finite(certificate.standard_error)
    if not lower <= upper + ROUNDING * _count(certificate.n):
        raise ValueError(f"its lower bound {lower} is above its upper bound {upper}")
    repr(certificate)  # raises an error if something else in it is not what it should be
    return certificate


def _stage(description: dict[str, Any], version: int) -> Stage:
    """The stage so described. Earlier versions had other names for some of its fields, and fewer of them."""
    fields = {EARLIER_FIELDS.get(name, name): value for name, value in description.items()}
    if version == WITHOUT_PARTS:
        fields["lower_bound"] = fields["objective"]
    if version < WITH_STAGE_ENDS:
        fields["end"] = StageEnd.from_text(fields["stopped"])
    parts = {
        "kernel": _kernel(fields["kernel"]),
        "repairs": Repairs(**fields["repairs"]),
        "end": StageEnd(fields["end"]),
    }
    stage = Stage(**{**fields, **parts})
    for number in (stage.objective, stage.lower_bound, stage.upper_bound, stage.seconds, stage.elapsed):
        _number(number)
    _count(stage.n), _count(stage.m), _positive(stage.noise_variance)
    return stage


def _number(value: Any) -> float:
    """A number, which may be infinite: a bound that could not be computed is."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value)


def _finite(value: Any) -> float:
    if not math.isfinite(_number(value)):
        raise ValueError(f"expected a finite number, got {value!r}")
    return float(value)


def _positive(value: Any) -> float:
    if _finite(value) <= 0.0:
        raise ValueError(f"expected a positive number, got {value!r}")
    return float(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected a whole number of at least 1, got {value!r}")
    return value


# ---- kernels ---------------------------------------------------------------------------------------------------------


def _describe(kernel: Kernel) -> dict[str, Any]:
    """A kernel as JSON-serialisable values."""
    if isinstance(kernel, Composite):
        return {"operation": kernel.operation, "parts": [_describe(part) for part in kernel.parts]}
    name = type(kernel).__name__
    if name not in kernels.__all__ or getattr(kernels, name) is not type(kernel):
        raise ValueError(f"only kernels of nearexact.kernels can be saved, got {kernel!r}")
    settings = {setting: getattr(kernel, setting) for setting in kernel.settings}
    values = {**settings, **{key: value.tolist() for key, value in kernel.parameters.items()}}
    bounds = {key: _describe_bounds(value) for key, value in kernel.bounds.items()}
    return {"name": name, "values": values} | ({"bounds": bounds} if bounds else {})


def _describe_bounds(bounds: CheckedBounds) -> Any:
    return bounds if isinstance(bounds, str) else [end.tolist() for end in bounds]


def _kernel(description: dict[str, Any]) -> Kernel:
    """The kernel that `_describe` described."""
    if "operation" in description:
        return Composite(description["operation"], tuple(_kernel(part) for part in description["parts"]))
    name = description["name"]
    kind = getattr(kernels, name) if name in kernels.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, Kernel) and kind not in (Kernel, Composite)):
        raise ValueError(f"there is no kernel {name!r}")
    return kind(**description["values"]).with_bounds(**description.get("bounds", {}))


def _plain(value: Any) -> Any:
    """NumPy's numbers, which JSON does not have, as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"cannot be saved: {value!r}")
