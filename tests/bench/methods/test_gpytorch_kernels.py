"""GPyTorch's kernels next to ours: the same matrices from the same parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearexact.bench.methods.gpytorch_kernels import as_module, read_back
from nearexact.kernels.base import Kernel
from nearexact.kernels.names import named_kernel

NAMES = ["se", "matern12", "matern32", "matern52", "linear", "periodic", "se+linear", "(matern32+linear)*periodic"]


def with_random_values(name: str, inputs: int) -> Kernel:
    rng, kernel = np.random.default_rng(0), named_kernel(name).for_inputs(inputs)
    return kernel.with_parameters({n: v * np.exp(0.4 * rng.normal(size=v.shape)) for n, v in kernel.parameters.items()})


@pytest.mark.parametrize("name", NAMES)
def test_gpytorch_computes_the_same_matrix(name: str) -> None:
    X, kernel = np.random.default_rng(1).normal(size=(20, 3)), with_random_values(name, 3)
    module = as_module(kernel, floor=1e-5)
    with torch.no_grad():
        K = module(torch.tensor(X), torch.tensor(X[:7])).to_dense()
    np.testing.assert_allclose(K, kernel(X, X[:7]), atol=1e-7)  # GPyTorch's distances are coarse near zero
    back = read_back(module, kernel)
    assert back.is_like(kernel)
    for parameter, value in kernel.parameters.items():
        np.testing.assert_allclose(back.parameters[parameter], value, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_gets_below_the_floor(name: str) -> None:
    kernel = with_random_values(name, 2)
    module = as_module(kernel, floor=1e-5)
    for parameter in module.parameters():
        parameter.data.fill_(-1e6)
    assert all((value >= 0.999e-5).all() for value in read_back(module, kernel).parameters.values())


def test_what_gpytorch_does_not_have_is_said() -> None:
    with pytest.raises(ValueError, match=r"GPyTorch has the kernels se, .* it has no ArcCosine"):
        as_module(named_kernel("se+arccosine1").for_inputs(2))
