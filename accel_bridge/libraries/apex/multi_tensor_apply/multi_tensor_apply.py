"""One call for many tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

R = TypeVar("R")


class MultiTensorApply:
    """Calls an operation on lists of tensors.

    :param chunk_size: elements that one block of the real library's kernels works on; operations
        take it as their first argument.
    """

    #: Whether the operations exist; callers of the real class ask before they use it.
    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self,
        op: Callable[..., R],
        noop_flag_buffer: torch.Tensor,
        tensor_lists: list[list[torch.Tensor]],
        *args: Any,
    ) -> R:
        """``op(chunk_size, noop_flag_buffer, tensor_lists, *args)``."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)
