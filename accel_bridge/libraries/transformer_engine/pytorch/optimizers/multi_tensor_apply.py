"""One call for many tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

from accel_bridge.libraries.tensor_lists import CHUNK

R = TypeVar("R")


class MultiTensorApply:
    """Calls an operation on lists of tensors.

    :param chunk_size: elements that one block of the real library's kernels works on; operations
        take it as their first argument.
    """

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self,
        op: Callable[..., R],
        noop_flag_buffer: torch.Tensor | None,
        tensor_lists: list[list[Any]],
        *args: Any,
    ) -> R:
        """``op(chunk_size, noop_flag_buffer, tensor_lists, *args)``, DTensors made local."""
        for tensors in tensor_lists:
            for index, tensor in enumerate(tensors):
                if isinstance(tensor, DTensor):
                    tensors[index] = tensor._local_tensor
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(CHUNK)
