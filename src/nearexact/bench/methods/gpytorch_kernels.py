"""Our kernels as GPyTorch's, for the methods that are made of its models, and back again.

GPyTorch has the squared exponential, Matérn, linear and periodic kernels, sums and products; not the arc-cosine kernel.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)

from nearexact.kernels import Linear, Matern12, Matern32, Matern52, Periodic, SquaredExponential
from nearexact.kernels.base import Kernel
from nearexact.kernels.composite import Composite
from nearexact.typing import FloatArray

SMOOTHNESS = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}


def as_module(kernel: Kernel, floor: float = 0.0) -> gpytorch.kernels.Kernel:
    """GPyTorch's kernel with the same values, in float64; no parameter gets below the floor.

    `kernel` has one value per input. ValueError if GPyTorch has no such kernel.
    """
    if isinstance(kernel, Composite):
        parts = [as_module(part, floor) for part in kernel.parts]
        return AdditiveKernel(*parts) if kernel.operation == "+" else ProductKernel(*parts)
    above = GreaterThan(floor)
    values = {name: torch.tensor(value) for name, value in kernel.parameters.items()}
    if isinstance(kernel, Linear):
        slopes = LinearKernel(ard_num_dims=len(values["variances"]), variance_constraint=above).double()
        slopes.variance = values["variances"][None]
        constant = ConstantKernel(constant_constraint=above).double()
        constant.constant = values["bias_variance"]
        return AdditiveKernel(slopes, constant)
    if isinstance(kernel, Periodic):
        options = {"lengthscale_constraint": GreaterThan(floor**2), "period_length_constraint": above}
        base = PeriodicKernel(ard_num_dims=len(values["period"]), **options).double()
        base.period_length, base.lengthscale = values["period"][None], values["lengthscales"][None] ** 2
        return _scaled(base, values["variance"], floor)
    if type(kernel) is SquaredExponential or type(kernel) in SMOOTHNESS:
        options = {"ard_num_dims": len(values["lengthscales"]), "lengthscale_constraint": above}
        smoothness = SMOOTHNESS.get(type(kernel))
        base = RBFKernel(**options) if smoothness is None else MaternKernel(nu=smoothness, **options)
        base.double().lengthscale = values["lengthscales"][None]
        return _scaled(base, values["variance"], floor)
    raise ValueError(
        "GPyTorch has the kernels se, matern12, matern32, matern52, linear, periodic, their sums and products;"
        f" it has no {type(kernel).__name__}"
    )


def read_back(module: gpytorch.kernels.Kernel, kernel: Kernel) -> Kernel:
    """The kernel with the values that its module has by now."""
    if isinstance(kernel, Composite):
        parts = zip(module.kernels, kernel.parts, strict=True)
        return Composite(kernel.operation, tuple(read_back(part, own) for part, own in parts))
    if isinstance(kernel, Linear):
        slopes, constant = module.kernels
        values: dict[str, Any] = {"variances": _array(slopes.variance), "bias_variance": constant.constant.item()}
    else:
        lengthscales = _array(module.base_kernel.lengthscale)
        values = {"lengthscales": lengthscales, "variance": module.outputscale.item()}
        if isinstance(kernel, Periodic):
            values |= {"lengthscales": np.sqrt(lengthscales), "period": _array(module.base_kernel.period_length)}
    return kernel.with_parameters(values)


def _scaled(base: gpytorch.kernels.Kernel, variance: torch.Tensor, floor: float) -> ScaleKernel:
    scaled = ScaleKernel(base, outputscale_constraint=GreaterThan(floor)).double()
    scaled.outputscale = variance
    return scaled


def _array(values: torch.Tensor) -> FloatArray:
    array: FloatArray = values.detach().cpu().numpy().ravel()
    return array
