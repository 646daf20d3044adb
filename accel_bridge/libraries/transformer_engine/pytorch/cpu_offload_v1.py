"""The first version of offloading: only marked tensors are moved.

Source of the names: transformer_engine/pytorch/cpu_offload_v1.py of Transformer Engine 2.13.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

import torch

from ._offload import DefaultOffloadSynchronizer
from ._offload_context import CpuOffloadContext, is_offloading, unchanged

__all__ = ["get_cpu_offload_context"]

#: The first version moves tensors of every size; those of a few elements are not worth a copy.
_SMALLEST: Final = 1024

#: Frameworks that move activations themselves set this around a forward pass.
CPUOffloadEnabled = False
CPUOffloadedLayer = False


def mark_activation_offload(*tensors: Any) -> None:
    """Mark tensors to be moved, by their attribute ``activation_offloading``."""
    for tensor in tensors:
        if tensor is None:
            continue
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        for part in (tensor,) if plain else tensor.get_data_tensors():
            if part is not None:
                part.activation_offloading = True


def is_cpu_offload_enabled() -> bool:
    """Whether the current forward pass's activations are moved to the host."""
    return CPUOffloadEnabled or is_offloading()


def is_current_layer_offloaded() -> bool:
    """Whether the current layer's activations are moved to the host."""
    return CPUOffloadedLayer


def get_cpu_offload_context(
    enabled: bool = False,
    num_layers: int = 1,
    model_layers: int = 1,
    offload_activations: bool = True,
    offload_weights: bool = False,
    double_buffering: bool = False,
) -> Any:
    """(context for each layer's forward pass, function for its output).

    The copies are those of the current version.

    :raises ValueError: nothing is to be moved.
    """
    if not (offload_weights or offload_activations):
        raise ValueError(
            "CPU Offloading is enabled while it is not "
            "mentioned what to offload (weights/activations)"
        )
    if not (enabled and offload_activations):
        return nullcontext(), unchanged
    synchronizer = DefaultOffloadSynchronizer(
        model_layers, min(num_layers, model_layers - 1), smallest=_SMALLEST
    )
    context = CpuOffloadContext(synchronizer)
    return context, context.synchronization_function
