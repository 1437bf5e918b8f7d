"""A fitted model as a torch module: mean and variance in the user's units, with gradients that flow to the inputs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearexact.gp.iterative_posterior import Posterior
from nearexact.scaling import Scaling


class TorchPosterior(torch.nn.Module):
    """Mean [...] and variance [...] at inputs X [..., D]: those of `predict`, in float64; of T targets [..., T].

    Its tensors are buffers, so that `to(device)` moves them; nothing in it is trained. `noise_variance` is that of a
    single observation, in the user's units; the variance that is returned has it in it if `noise` is true.
    """

    def __init__(self, posterior: Posterior, scaling_X: Scaling, scaling_y: Scaling, noise: bool) -> None:
        super().__init__()
        self.noise, self._posterior = noise, posterior
        self._names = [field.name for field in fields(posterior) if isinstance(getattr(posterior, field.name), Tensor)]
        for name in self._names:
            self.register_buffer(name, getattr(posterior, name))
        for name, values in (
            ("shift_X", scaling_X.shift),
            ("scale_X", scaling_X.scale),
            ("shift_y", scaling_y.shift),
            ("scale_y", scaling_y.scale),
            ("noise_variance", posterior.noise_variance * np.square(scaling_y.scale)),
        ):
            self.register_buffer(name, torch.tensor(np.asarray(values), dtype=torch.float64))

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        shift_X, scale_X, shift_y, scale_y, noise_variance = (
            self.get_buffer(name) for name in ("shift_X", "scale_X", "shift_y", "scale_y", "noise_variance")
        )
        if X.ndim < 1 or X.shape[-1] != len(shift_X):
            raise ValueError(f"X must have {len(shift_X)} inputs in its last dimension, got shape {tuple(X.shape)}")
        rows = (X.to(torch.float64).reshape(-1, len(shift_X)) - shift_X) / scale_X
        tensors: dict[str, Any] = {name: self.get_buffer(name) for name in self._names}
        mean, variance = replace(self._posterior, **tensors).differentiable(rows)
        shape = (*X.shape[:-1], *scale_y.shape)
        variance = variance.reshape(-1, *(1 for _ in scale_y.shape)) * scale_y.square()
        variance = variance + (noise_variance if self.noise else 0.0)
        return (mean * scale_y + shift_y).reshape(shape), variance.reshape(shape)
