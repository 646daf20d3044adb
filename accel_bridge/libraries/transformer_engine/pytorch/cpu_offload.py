"""Saved activations that wait in the host's memory for the backward pass.

Source of the names: transformer_engine/pytorch/cpu_offload.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from accel_bridge.kernels.active import features, say_once

from . import cpu_offload_v1
from ._offload import (
    KEEP,
    READY,
    WHOLE,
    DefaultOffloadSynchronizer,
    ManualOffloadSynchronizer,
    OffloadableLayerState,
    OffloadSynchronizer,
)
from ._offload_context import CpuOffloadContext, is_offloading, unchanged
from .quantized_tensor import QuantizedTensorStorage, prepare_for_saving, restore_from_saved

__all__ = [
    "DefaultOffloadSynchronizer",
    "ManualOffloadSynchronizer",
    "OffloadSynchronizer",
    "OffloadableLayerState",
    "get_cpu_offload_context",
    "is_cpu_offload_enabled",
    "mark_activation_offload",
    "mark_not_offload",
    "start_offload",
]

NVTE_CPU_OFFLOAD_V1 = os.environ.get("NVTE_CPU_OFFLOAD_V1", "0") == "1"


def is_cpu_offload_enabled() -> bool:
    """Whether the current forward pass's activations are moved to the host."""
    if NVTE_CPU_OFFLOAD_V1:
        return cpu_offload_v1.is_cpu_offload_enabled()
    return is_offloading()


def mark_activation_offload(*tensors: Any) -> None:
    """Mark tensors to be moved; only the first version asks for marks."""
    if NVTE_CPU_OFFLOAD_V1:
        cpu_offload_v1.mark_activation_offload(*tensors)


def _each(tensors: tuple[Any, ...], change: Callable[[torch.Tensor], None]) -> None:
    """Change the attributes of tensors and of the parts of FP8 tensors."""
    plain = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    storages = [tensor for tensor in tensors if isinstance(tensor, QuantizedTensorStorage)]
    parts, owners = prepare_for_saving(
        *(one for one in storages if not isinstance(one, torch.Tensor))
    )
    for tensor in (*plain, *parts):
        if tensor is not None:
            change(tensor)
    restore_from_saved(owners, parts)


def mark_not_offload(*tensors: Any) -> None:
    """Keep these tensors on the device."""
    _each(tensors, lambda tensor: setattr(tensor, KEEP, True))


def start_offload(*tensors: Any, offload_base_tensor: bool = False) -> None:
    """These tensors are computed: their copies need not wait for what follows.

    :param offload_base_tensor: move the whole tensor that they are views of, once.
    """
    if NVTE_CPU_OFFLOAD_V1:
        return

    def ready(tensor: torch.Tensor) -> None:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream())
        setattr(tensor, READY, event)
        if offload_base_tensor and tensor._base is not None:
            setattr(tensor, WHOLE, True)

    _each(tensors, ready)


def get_cpu_offload_context(
    enabled: bool = False,
    num_layers: int | None = 1,
    model_layers: int = 1,
    offload_activations: bool = True,
    offload_weights: bool = False,
    double_buffering: bool = False,
    manual_synchronization: bool = False,
    retain_pinned_cpu_buffers: bool = False,
    offload_stream: Any = None,
) -> Any:
    """(context for each layer's forward pass, function for its output).

    With ``manual_synchronization`` also what moves the layers. Where the device's tensors lie in
    the host's memory, nothing is moved.

    :param num_layers: layers that are moved.
    :param model_layers: layers that run in the context.
    :param offload_weights: deprecated; has no effect.
    :param double_buffering: deprecated; has no effect.
    :param retain_pinned_cpu_buffers: use the same memory of the host in every iteration.
    :param offload_stream: where copies run; only with ``manual_synchronization``.
    :raises ValueError: nothing is to be moved.
    """
    if NVTE_CPU_OFFLOAD_V1:
        return cpu_offload_v1.get_cpu_offload_context(
            enabled, num_layers or 1, model_layers, offload_activations, offload_weights
        )
    inert = (
        (nullcontext(), unchanged, None) if manual_synchronization else (nullcontext(), unchanged)
    )
    if not enabled:
        return inert
    if not (offload_weights or offload_activations):
        raise ValueError(
            "CPU Offloading is enabled while it is not "
            "mentioned what to offload (weights/activations)"
        )
    if offload_weights:
        warnings.warn(
            "Offloading weights is deprecated. Using offload_weights=True does not have any "
            "effect.",
            DeprecationWarning,
            stacklevel=2,
        )
        if not offload_activations:
            return inert
    synchronizer: OffloadSynchronizer
    if manual_synchronization:
        synchronizer = ManualOffloadSynchronizer(
            model_layers, retain_pinned_cpu_buffers, offload_stream
        )
    else:
        assert num_layers is not None
        assert num_layers <= model_layers - 1, (
            "Cannot offload all layers without manual synchronization - "
            "last layer is not offloaded."
        )
        assert offload_stream is None, (
            "offload_stream can be provided only if manual_synchronization is True"
        )
        if num_layers == model_layers - 1:
            warnings.warn(
                "Offloading num_layers == model_layers - 1 is not recommended, it prevents "
                "overlapping of computation and offload/reload.",
                stacklevel=2,
            )
        synchronizer = DefaultOffloadSynchronizer(
            model_layers, num_layers, retain_pinned_cpu_buffers
        )
    if features().tensors_on_host and not manual_synchronization:
        say_once("CPU offload: activations lie in the host's memory already; nothing is moved")
        return inert
    context = CpuOffloadContext(synchronizer)
    if manual_synchronization:
        return context, context.synchronization_function, synchronizer
    return context, context.synchronization_function
