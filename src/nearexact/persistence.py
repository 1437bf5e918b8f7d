"""Fitted estimators in one file, without pickle: arrays and a JSON header in the safetensors format.

Reading a file executes nothing that is in it: estimators and kernels are looked up by name among those of this package.
Since version 3 a checksum over the whole file makes sure that not one bit of it has changed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open

from nearexact import kernels
from nearexact.files import replacing
from nearexact.gp.exact import ExactObjective, exact_memory
from nearexact.gp.iterative_posterior import IterativePosterior, Posterior
from nearexact.gp.more_rows import AllAdded
from nearexact.gp.neighbours import SIZES
from nearexact.gp.posterior import ExactPosterior, RowSums, SparsePosterior
from nearexact.gp.row_noise import RowNoise
from nearexact.gp.safety import Repairs
from nearexact.gp.stages import Stage, StageEnd
from nearexact.kernels import Kernel
from nearexact.kernels.composite import Composite
from nearexact.kernels.names import named_kernel
from nearexact.kernels.parameter_bounds import CheckedBounds
from nearexact.limits import free_memory
from nearexact.model_file import write_file
from nearexact.model_header import (
    ARRAYS,
    EXACT,
    EXACT_FACTOR,
    FORMAT,
    ITERATIVE,
    METHODS,
    NOISE_ARRAYS,
    SPARSE,
    VERSION,
    WITH_ROWS,
    WITH_STAGE_ENDS,
    WITHOUT_PARTS,
    ModelHeader,
    count,
    explained,
    finite,
    number,
    positive,
    read_header,
)
from nearexact.scaling import Scaling

if TYPE_CHECKING:
    from nearexact.estimators import GPRegressor, SGPRegressor

KINDS: dict[type[Posterior], str] = {SparsePosterior: SPARSE, ExactPosterior: EXACT, IterativePosterior: ITERATIVE}
CHOLESKY_FACTORS = ("L", "L_B")


def method_of(posterior: Posterior) -> str:
    """How a model with this posterior predicts: `method_` of the estimator."""
    return METHODS[KINDS[type(posterior)]]


def save(estimator: SGPRegressor | GPRegressor, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator. A file that is already there is replaced only once the new one is complete."""
    posterior = estimator._posterior
    if type(estimator).__module__ != "nearexact.estimators":
        raise ValueError(f"only SGPRegressor and GPRegressor themselves can be saved, got {type(estimator).__name__}")
    kind = KINDS[type(posterior)]
    arrays = {name: getattr(posterior, name).detach().cpu().numpy() for name in ARRAYS[kind]}
    row_noise = None if isinstance(posterior, SparsePosterior) else posterior.row_noise
    if row_noise is not None:
        arrays |= {name: getattr(row_noise, part).cpu().numpy() for name, part in NOISE_ARRAYS.items()}
    for name, scaling in (("X", estimator._scaling_X), ("y", estimator._scaling_y)):
        arrays |= {f"shift_{name}": np.asarray(scaling.shift), f"scale_{name}": np.asarray(scaling.scale)}
    settings = estimator.get_params(deep=False)
    if isinstance(settings["kernel"], Kernel):  # else a name, or None
        settings["kernel"] = describe(settings["kernel"])
    if not isinstance(settings["random_state"], (int, np.integer, type(None))):
        settings["random_state"] = None  # a generator has a state of its own, which does not belong to the model
    settings["device"] = str(settings["device"])
    header = {
        "format": FORMAT,
        "version": VERSION if row_noise is None and posterior.weights.ndim == 1 else WITH_ROWS,
        "estimator": type(estimator).__name__,
        "posterior": kind,
        "settings": settings,
        "kernel": describe(estimator.kernel_),
        "noise_variance": estimator.noise_variance_,
        "elbo": estimator.elbo_,
        "upper_bound": estimator.upper_bound_,
        "weight_unit": estimator._weight_unit,
        "certificate": asdict(estimator.certificate_),
        "history": [describe_stage(stage) for stage in estimator.history_],
        "feature_names": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "metadata": getattr(estimator, "metadata_", {}),
    }
    if isinstance(posterior, IterativePosterior):
        header["residual_bound"] = posterior.residual_bound
    if isinstance(posterior, SparsePosterior) and posterior.sums is not None:
        header["sums"] = asdict(posterior.sums)
    if estimator._added.values:
        header["added"] = asdict(estimator._added)
    try:
        text = json.dumps(header, default=plain_number)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the model holds something that cannot be saved: {error}") from error
    with replacing(path) as temporary, temporary.open("wb") as file:
        write_file(file, text, arrays)


def load(path: str | os.PathLike[str]) -> SGPRegressor | GPRegressor:
    """The estimator that `save` wrote. It predicts, to the bit, as the saved one; training data are not in the file."""
    with explained(path):
        header = read_header(path)
        with safe_open(path, framework="pt") as file:
            # Copied, so that the memory is aligned as it was when fitted: rounding depends on that.
            arrays = {name: _check_numbers(name, file.get_tensor(name).clone()) for name in header.shapes}
        return _rebuild(header, arrays)


def contiguous(posterior: Posterior) -> Posterior:
    """The same with arrays laid out as they are after loading: rounding depends on that."""
    kind = KINDS[type(posterior)]
    names = (*ARRAYS[kind], EXACT_FACTOR) if kind == EXACT else ARRAYS[kind]
    arrays: dict[str, Any] = {name: getattr(posterior, name).contiguous() for name in names}
    return replace(posterior, **arrays)


# ---- from a file to an estimator; what goes wrong here is reported by `load` -----------------------------------------


def _check_numbers(name: str, array: torch.Tensor) -> torch.Tensor:
    if array.dtype != torch.float64 or not torch.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers of 64 bits")
    positive = array.diagonal() if name in CHOLESKY_FACTORS else array if name.startswith("scale_") else None
    if positive is not None and not (positive > 0.0).all():
        raise ValueError(f"{name} must hold positive numbers")
    return array


def _rebuild(header: ModelHeader, arrays: dict[str, torch.Tensor]) -> SGPRegressor | GPRegressor:
    from nearexact import estimators  # here, since estimators save themselves with this module

    entries = header.entries
    settings = dict(entries["settings"])
    if isinstance(settings["kernel"], dict):
        settings["kernel"] = _kernel(settings["kernel"])
    elif settings["kernel"] is not None:
        named_kernel(settings["kernel"])  # raises an error if there is none of this name
    classes = {cls.__name__: cls for cls in (estimators.SGPRegressor, estimators.GPRegressor)}
    estimator: SGPRegressor | GPRegressor = classes[entries["estimator"]](**settings)
    scalings = [Scaling(arrays[f"shift_{name}"].numpy(), arrays[f"scale_{name}"].numpy()) for name in "Xy"]
    estimator._scaling_X, estimator._scaling_y = scalings
    m, d = len(arrays["weights"]), len(arrays["shift_X"])
    kernel, noise_variance = _kernel(entries["kernel"]).for_inputs(d), positive(entries["noise_variance"])
    estimator._posterior = _posterior(entries, arrays, kernel, noise_variance)
    estimator._problem, estimator.search_ = None, []
    estimator._added = _added(entries.get("added"))
    estimator._weight_unit = positive(entries.get("weight_unit", 1.0))
    estimator.kernel_, estimator.noise_variance_ = kernel, noise_variance
    estimator.inducing_points_ = scalings[0].undo(estimator._posterior.inducing_points.numpy())
    estimator.elbo_, estimator.upper_bound_ = finite(entries["elbo"]), number(entries["upper_bound"])
    estimator.certificate_, estimator.method_ = header.certificate(), header.method
    estimator.history_ = [described_stage(fields, header.version) for fields in header.stages()]
    n = estimator.certificate_.n
    if m > n or (entries["posterior"] != SPARSE and m != n) or any(s.n > n for s in estimator.history_):
        raise ValueError(f"a model of {n} rows cannot have {m} points, or a history of other rows")
    estimator.n_features_in_ = d
    if entries["feature_names"]:
        names = entries["feature_names"]
        if not isinstance(names, list) or len(names) != d or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{d} inputs need as many names, got {names!r}")
        estimator.feature_names_in_ = np.array(entries["feature_names"], dtype=object)
    estimator.metadata_ = header.metadata
    return estimator


def _posterior(
    header: dict[str, Any], arrays: dict[str, torch.Tensor], kernel: Kernel, noise_variance: float
) -> Posterior:
    kind: str = header["posterior"]
    parts: dict[str, Any] = {name: arrays[name] for name in ARRAYS[kind]}
    parts |= {"kernel": kernel, "noise_variance": noise_variance, "repairs": Repairs()}
    if kind == SPARSE:
        return SparsePosterior(sums=_sums(header.get("sums")), **parts)
    noise = {part: arrays[name] for name, part in NOISE_ARRAYS.items() if name in arrays}
    row_noise = RowNoise(**noise) if noise else None
    if kind == ITERATIVE:
        bound = finite(header["residual_bound"])
        if bound < 0.0:
            raise ValueError(f"expected a residual bound that is not negative, got {bound}")
        if len(arrays["extrapolation"]) != len(SIZES) + 1:
            raise ValueError(f"extrapolation has {len(arrays['extrapolation'])} numbers instead of {len(SIZES) + 1}")
        return IterativePosterior(residual_bound=bound, row_noise=row_noise, **parts)
    if EXACT_FACTOR in arrays:
        features = kernel.features(parts["X"], parts["centre"])
        return ExactPosterior(features_X=features, L=arrays[EXACT_FACTOR], jitter=0.0, row_noise=row_noise, **parts)
    n = len(parts["X"])
    needed, free = exact_memory(kernel, n), free_memory(parts["X"].device)
    if needed > free:
        raise MemoryError(f"an exact GP of {n} rows needs {needed / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free")
    objective = ExactObjective(kernel, noise_variance, parts["X"], parts["y"], row_noise=row_noise)
    computed = objective.factorise(kernel, noise_variance)
    exact = replace(computed, centre=parts["centre"], weights=parts["weights"])
    return contiguous(exact)


def _sums(description: dict[str, Any] | None) -> RowSums | None:
    """Earlier releases did not keep them."""
    if description is None:
        return None
    sums = RowSums(**description)
    count(sums.n), finite(sums.yy), finite(sums.log_scales), number(sums.trace), number(sums.log_residuals)
    finite(sums.residual_error)
    return sums


def _added(description: dict[str, Any] | None) -> AllAdded:
    """Only models with updates have it."""
    added = AllAdded() if description is None else AllAdded(**description)
    if description is not None:
        finite(added.distance), count(added.values)
    return added


def describe_stage(stage: Stage) -> dict[str, Any]:
    """A stage as JSON-serialisable values."""
    return {**vars(stage), "kernel": describe(stage.kernel), "repairs": asdict(stage.repairs)}


def described_stage(fields: dict[str, Any], version: int = VERSION) -> Stage:
    """The stage with these fields, of which earlier versions had fewer."""
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
    for value in (stage.objective, stage.lower_bound, stage.upper_bound, stage.seconds, stage.elapsed):
        number(value)
    count(stage.n), count(stage.m), positive(stage.noise_variance)
    return stage


# ---- kernels ---------------------------------------------------------------------------------------------------------


def describe(kernel: Kernel) -> dict[str, Any]:
    """A kernel as JSON-serialisable values."""
    if isinstance(kernel, Composite):
        return {"operation": kernel.operation, "parts": [describe(part) for part in kernel.parts]}
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
    """The kernel that `describe` described."""
    if "operation" in description:
        return Composite(description["operation"], tuple(_kernel(part) for part in description["parts"]))
    name = description["name"]
    kind = getattr(kernels, name) if name in kernels.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, Kernel) and kind not in (Kernel, Composite)):
        raise ValueError(f"there is no kernel {name!r}")
    return kind(**description["values"]).with_bounds(**description.get("bounds", {}))


def plain_number(value: Any) -> Any:
    """NumPy's numbers, which JSON does not have, as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"cannot be saved: {value!r}")
