"""Fitted estimators in one file, without pickle: arrays and a JSON header in the safetensors format.

Reading a file executes nothing that is in it: estimators and kernels are looked up by name among those of this package.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from nearexact import kernels
from nearexact.certificate import Certificate
from nearexact.files import replacing
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.safety import Repairs
from nearexact.gp.stages import Stage
from nearexact.kernels import Kernel
from nearexact.kernels.composite import Composite
from nearexact.scaling import Scaling

if TYPE_CHECKING:
    from nearexact.estimators import GPRegressor, SGPRegressor

HEADER = "nearexact"
FORMAT = "fitted estimator"
VERSION = 2
READABLE = (1, 2)  # 1 knew neither the parts of a certificate nor the lower bound of a stage

# What reading a file that is not what it says may raise.
DAMAGES = (SafetensorError, OSError, MemoryError, RecursionError, AttributeError, LookupError, TypeError, ValueError)

# The arrays of a posterior, by their names in it.
SPARSE_ARRAYS = ("Z", "L", "L_B", "weights")
EXACT_ARRAYS = ("X", "centre", "y", "L", "weights")


def save(estimator: SGPRegressor | GPRegressor, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator. A file that is already there is replaced only once the new one is complete."""
    posterior = estimator._posterior
    if type(estimator).__module__ != "nearexact.estimators":
        raise ValueError(f"only SGPRegressor and GPRegressor themselves can be saved, got {type(estimator).__name__}")
    names = SPARSE_ARRAYS if isinstance(posterior, SparsePosterior) else EXACT_ARRAYS
    arrays = {name: getattr(posterior, name) for name in names}
    for name, scaling in (("X", estimator._scaling_X), ("y", estimator._scaling_y)):
        arrays[f"shift_{name}"] = torch.tensor(scaling.shift)
        arrays[f"scale_{name}"] = torch.tensor(scaling.scale)
    settings = estimator.get_params(deep=False)
    settings["kernel"] = None if settings["kernel"] is None else _describe(settings["kernel"])
    if not isinstance(settings["random_state"], (int, np.integer, type(None))):
        settings["random_state"] = None  # a generator has a state of its own, which does not belong to the model
    settings["device"] = str(settings["device"])
    header = {
        "format": FORMAT,
        "version": VERSION,
        "estimator": type(estimator).__name__,
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
    }
    if hasattr(estimator, "recipe_"):  # how a table's columns become inputs; see nearexact.tables
        header["recipe"] = estimator.recipe_
    metadata = {HEADER: json.dumps(header, default=_plain)}  # one entry: safetensors writes several in random order
    with replacing(path) as temporary:
        save_file({name: array.detach().cpu().contiguous() for name, array in arrays.items()}, temporary, metadata)


def load(path: str | os.PathLike[str]) -> SGPRegressor | GPRegressor:
    """The estimator that `save` wrote. It predicts, to the bit, as the saved one; training data are not in the file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no model file {os.fspath(path)!r}")
    with open(path, "rb"):  # a file that may not be read is not a damaged one
        pass
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            if header.get("format") != FORMAT:
                raise ValueError("it holds something else")
            if header["version"] not in READABLE:
                known = " and ".join(map(str, READABLE))
                raise ValueError(f"its version is {header['version']}, this release reads versions {known}")
            # Copied, so that the memory is aligned as it was when fitted: rounding depends on that.
            arrays = {name: _checked(name, file.get_tensor(name).clone()) for name in file.keys()}  # noqa: SIM118
        return _rebuild(header, arrays)
    except DAMAGES as error:
        raise ValueError(
            f"{os.fspath(path)!r} is not a model file of nearexact, or is damaged: {type(error).__name__}: {error}"
        ) from error


def _rebuild(header: dict[str, Any], arrays: dict[str, torch.Tensor]) -> SGPRegressor | GPRegressor:
    """An estimator from a file's header and arrays; raises whatever it stumbles over."""
    from nearexact import estimators  # which uses this module

    settings = dict(header["settings"])
    if settings["kernel"] is not None:
        settings["kernel"] = _kernel(settings["kernel"])
    classes = {cls.__name__: cls for cls in (estimators.SGPRegressor, estimators.GPRegressor)}
    estimator: SGPRegressor | GPRegressor = classes[header["estimator"]](**settings)
    scalings = [Scaling(arrays[f"shift_{name}"].numpy(), arrays[f"scale_{name}"].numpy()) for name in "Xy"]
    estimator._scaling_X, estimator._scaling_y = scalings
    d = len(scalings[0].shift)
    for scaling, shape in zip(scalings, ((d,), ()), strict=True):
        if scaling.shift.shape != shape or scaling.scale.shape != shape or not (scaling.scale > 0.0).all():
            raise ValueError("the scaling of inputs or targets is not one")
    kernel, noise_variance = _kernel(header["kernel"]).for_inputs(d), float(header["noise_variance"])
    estimator._posterior = _posterior(header["estimator"], arrays, kernel, noise_variance, d)
    estimator._problem = None
    estimator.kernel_, estimator.noise_variance_ = kernel, noise_variance
    estimator.inducing_points_ = scalings[0].undo(estimator._posterior.inducing_points.numpy())
    estimator.elbo_, estimator.upper_bound_ = float(header["elbo"]), float(header["upper_bound"])
    estimator.certificate_ = Certificate(**header["certificate"])
    repr(estimator.certificate_)  # fails if its numbers are none
    estimator.history_ = [
        Stage(**{**known, **stage, "kernel": _kernel(stage["kernel"]), "repairs": Repairs(**stage["repairs"])})
        for stage in header["history"]
        for known in [{"lower_bound": stage["elbo"]} if header["version"] == 1 else {}]
    ]
    estimator.n_features_in_ = d
    if header["feature_names"]:
        names = header["feature_names"]
        if not isinstance(names, list) or len(names) != d or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{d} inputs need as many names, got {names!r}")
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if "recipe" in header:
        if not isinstance(header["recipe"], dict):
            raise ValueError(f"the recipe for columns must be an object, got {type(header['recipe']).__name__}")
        estimator.recipe_ = header["recipe"]
    return estimator


def _posterior(
    estimator: str, arrays: dict[str, torch.Tensor], kernel: Kernel, noise_variance: float, d: int
) -> SparsePosterior | ExactPosterior:
    sparse = estimator == "SGPRegressor"
    m = len(arrays["weights"])
    shapes = {"weights": (m,), "L": (m, m), "L_B": (m, m), "Z": (m, d), "X": (m, d), "centre": (d,), "y": (m,)}
    parts = {name: arrays[name] for name in (SPARSE_ARRAYS if sparse else EXACT_ARRAYS)}
    for name, array in parts.items():
        if array.shape != shapes[name]:
            raise ValueError(f"{name} has shape {tuple(array.shape)} instead of {shapes[name]}")
    if not 0.0 < noise_variance < math.inf:
        raise ValueError(f"the noise variance is {noise_variance}")
    if sparse:
        return SparsePosterior(kernel=kernel, noise_variance=noise_variance, repairs=Repairs(), **parts)
    of_X = kernel.features(parts["X"], parts["centre"])
    return ExactPosterior(
        kernel=kernel, noise_variance=noise_variance, of_X=of_X, jitter=0.0, repairs=Repairs(), **parts
    )


def contiguous(posterior: SparsePosterior | ExactPosterior) -> SparsePosterior | ExactPosterior:
    """The same with arrays laid out as they are after loading: rounding depends on that."""
    names = SPARSE_ARRAYS if isinstance(posterior, SparsePosterior) else EXACT_ARRAYS
    return replace(posterior, **{name: getattr(posterior, name).contiguous() for name in names})


def _checked(name: str, array: torch.Tensor) -> torch.Tensor:
    if array.dtype != torch.float64 or not torch.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers of 64 bits")
    return array


def _describe(kernel: Kernel) -> dict[str, Any]:
    """A kernel in words that JSON has."""
    if isinstance(kernel, Composite):
        return {"operation": kernel.operation, "parts": [_describe(part) for part in kernel.parts]}
    name = type(kernel).__name__
    if name not in kernels.__all__ or getattr(kernels, name) is not type(kernel):
        raise ValueError(f"only kernels of nearexact.kernels can be saved, got {kernel!r}")
    settings = {setting: getattr(kernel, setting) for setting in kernel.settings}
    return {"name": name, "values": {**settings, **{key: value.tolist() for key, value in kernel.parameters.items()}}}


def _kernel(description: dict[str, Any]) -> Kernel:
    """The kernel so described."""
    if "operation" in description:
        return Composite(description["operation"], tuple(_kernel(part) for part in description["parts"]))
    name = description["name"]
    kind = getattr(kernels, name) if name in kernels.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, Kernel) and kind not in (Kernel, Composite)):
        raise ValueError(f"there is no kernel {name!r}")
    return kind(**description["values"])


def _plain(value: Any) -> Any:
    """What JSON does not know: NumPy's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"cannot be saved: {value!r}")
