"""The context around a layer's forward pass whose saved tensors move to the host."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from ._offload import OffloadSynchronizer

#: That of the context around the current forward pass.
_current: OffloadSynchronizer | None = None


def is_offloading() -> bool:
    """Whether the current forward pass is inside of a context."""
    return _current is not None


class CpuOffloadContext(contextlib.ContextDecorator):
    """Around one layer's forward pass; :meth:`synchronization_function` takes its output."""

    def __init__(self, synchronizer: OffloadSynchronizer) -> None:
        self.offload_synchronizer = synchronizer
        self.current_layer: int | None = None
        self.inside_context = False
        self._before: OffloadSynchronizer | None = None
        self._hooks: Any = None

    def __enter__(self) -> CpuOffloadContext:
        global _current
        assert not self.inside_context, (
            "Offloading context was entered without synchronization function being called."
        )
        self.inside_context = True
        synchronizer = self.offload_synchronizer
        self._hooks = torch.autograd.graph.saved_tensors_hooks(
            synchronizer.push_tensor, synchronizer.pop_tensor
        )
        self._hooks.__enter__()
        self._before, _current = _current, synchronizer
        self.current_layer = synchronizer.fwd_step()
        return self

    def __exit__(self, *details: Any) -> None:
        global _current
        self._hooks.__exit__(*details)
        _current = self._before
        self.inside_context = False

    def synchronization_function(self, tensor: torch.Tensor) -> torch.Tensor:
        """The layer's output; its backward pass begins with the copies back."""
        assert tensor.requires_grad
        assert tensor.grad_fn is not None
        assert self.current_layer is not None
        assert not self.inside_context, (
            "Synchronization function was called without offloading context being entered."
        )
        layer, synchronizer = self.current_layer, self.offload_synchronizer

        def hook(gradients: Any) -> None:
            torch.autograd.Variable._execution_engine.queue_callback(
                synchronizer.finish_part_of_bwd
            )
            synchronizer.bwd_step(layer)

        tensor.grad_fn.register_prehook(hook)
        return tensor


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself: nothing is moved."""
    return tensor
