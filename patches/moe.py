"""Mixture of experts where device tensors are host tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch

from accel_bridge._host import Host
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext


def _make(context: PatchContext) -> Callable[..., object]:
    def maybe_move_tensor_to_cpu(
        tensor: torch.Tensor, as_numpy: bool = False, record_stream: bool = False
    ) -> torch.Tensor | numpy.ndarray:
        """The tensor is on the host already; only its type may have to change."""
        if as_numpy and isinstance(tensor, torch.Tensor):
            array: numpy.ndarray = tensor.numpy()
            return array
        return tensor

    return maybe_move_tensor_to_cpu


def _on_device(host: Host) -> str | None:
    if not host.features.tensors_on_host:
        return f"tensors of the {host.backend.name} device are not host tensors"
    return None


PATCHES = (
    Patch(
        id="moe-splits-on-host",
        target="megatron.core.transformer.moe.moe_utils:maybe_move_tensor_to_cpu",
        kind=Kind.REPLACE,
        make=_make,
        why="it turns splits into numpy only for CUDA tensors, so all-to-all gets tensor splits",
        upstream=f"{SOURCE}/core/transformer/moe/moe_utils.py",
        removed_when="as_numpy is honoured for a tensor that is already on the host",
        loses="the all-to-all token dispatcher fails on expert parallel sizes above 1",
        requires=REQUIRES,
        parameters=("tensor", "as_numpy", "record_stream"),
        skip_when=_on_device,
    ),
)
