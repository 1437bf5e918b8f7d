"""Model files that were tampered with, and files of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import nearexact
from nearexact.model_file import write_file


def header_of(path: Path) -> dict[str, Any]:
    """What a model file says about its model."""
    with safe_open(path, framework="pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()["nearexact"])
    return header


def arrays_of(path: Path) -> dict[str, torch.Tensor]:
    """The arrays of a model file."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def altered(saved: Path, target: Path, change: dict[str, object], **arrays: torch.Tensor | None) -> Path:
    """The saved model as a file of version 2, which has no checksum, with parts of its header and arrays replaced."""
    header = header_of(saved)
    metadata = header.pop("metadata")  # which had no entry of their own
    header = {**header, **metadata, "version": 2, **change}
    tensors = {name: tensor for name, tensor in {**arrays_of(saved), **arrays}.items() if tensor is not None}
    save_file(tensors, target, {"nearexact": json.dumps(header)})
    return target


def resigned(saved: Path, target: Path, change: dict[str, object]) -> Path:
    """The saved model with parts of its header replaced, and the checksum that belongs to the result."""
    arrays = {name: tensor.numpy() for name, tensor in arrays_of(saved).items()}
    with target.open("wb") as file:
        write_file(file, json.dumps({**header_of(saved), **change}), arrays)
    return target


def refused(path: Path) -> str:
    """The message with which `load` refuses a file."""
    with pytest.raises(ValueError, match="is not a model file of nearexact, or is damaged: ") as caught:
        nearexact.load(path)
    return str(caught.value)
