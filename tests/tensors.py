"""What torch allocates while a block of code runs."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):
    """Records the largest tensor that any operation returns and the most bytes that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest_elements = 0
        self.peak_bytes = 0
        self._references: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._alive = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        self.largest_elements = max(self.largest_elements, tensor.numel())
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self._bytes:
            self._references[address], self._bytes[address] = 0, storage.nbytes()
            self._alive += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._alive)
        self._references[address] += 1
        weakref.finalize(tensor, self._drop, address)

    def _drop(self, address: int) -> None:
        self._references[address] -= 1
        if not self._references[address]:
            del self._references[address]
            self._alive -= self._bytes.pop(address)
