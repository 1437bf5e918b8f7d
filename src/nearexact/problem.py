"""Training data as the models see them: checked, standardised, and here or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearexact.gp.row_noise import RowNoise
from nearexact.gp.rows import LocalRows, Rows, local
from nearexact.gp.starts import Start
from nearexact.known_noise import KnownNoise
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray

LARGEST_INPUT = 1e150  # standard deviations; its square is still finite


@dataclass(frozen=True, eq=False)
class Problem:
    """Training data, standardised, and hyperparameters to start from besides those of the kernel."""

    data: Rows
    scaling_X: Scaling
    scaling_y: Scaling
    start: Start | None = None
    weight_unit: float = 1.0  # the `sample_weight` of a new observation

    @property
    def X(self) -> torch.Tensor:
        """Inputs that are here [N, D]."""
        return local(self.data).X

    @property
    def y(self) -> torch.Tensor:
        """Targets that are here: [N], or [N, T]."""
        return local(self.data).y

    @property
    def row_noise(self) -> RowNoise | None:
        """Noise of each row, where it differs."""
        return self.data.row_noise

    @staticmethod
    def of(
        X: FloatArray,
        y: FloatArray,
        scaling_X: Scaling,
        scaling_y: Scaling,
        device: torch.device,
        noise: KnownNoise | None = None,
    ) -> Problem:
        targets = torch.tensor(scaling_y.apply(y), device=device)
        row_noise = None if noise is None else noise.standardised(scaling_y, device)
        data = LocalRows(standardised(X, scaling_X).to(device), targets, row_noise)
        return Problem(data, scaling_X, scaling_y, weight_unit=1.0 if noise is None else noise.unit)


def is_dask_collection(values: Any) -> bool:
    """Whether these are rows of Dask, which need not be installed to say no."""
    return callable(getattr(type(values), "__dask_graph__", None))


def check_targets_vary(varies: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    """A single target may be constant: then there is a model for it, if a dull one."""
    if len(varies) > 1 and not varies.all():
        raise ValueError(
            f"every target must vary, but of {len(varies)} targets these columns of y are constant:"
            f" {', '.join(map(str, np.flatnonzero(~varies)))}"
        )


def device_named(name: str) -> torch.device:
    """The device of that name; a ValueError if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f'device must be "auto" or a device that torch has here, got {name!r}: {error}') from error
    return device


def standardised(inputs: FloatArray, scaling: Scaling) -> torch.Tensor:
    """Inputs as the models see them; what is beyond all reason is clipped."""
    scaled = scaling.apply(inputs)
    return torch.from_numpy(np.clip(scaled, -LARGEST_INPUT, LARGEST_INPUT, out=scaled))


def target_checks(y: Any) -> dict[str, bool]:
    """What scikit-learn is to check of targets: that they are numbers; a single column becomes a vector."""
    return {"y_numeric": True, "multi_output": np.asarray(as_array(y)).shape[1:] not in ((), (1,))}


def as_array(values: Any) -> Any:
    """Tensors as arrays; scikit-learn takes care of everything else."""
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
