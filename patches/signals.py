"""Signals that all ranks learn of, on communication backends that Megatron does not know."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext

#: Communication backends that upstream knows a device for.
KNOWN: Final = ("nccl", "gloo")


def _make_get_device(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    @functools.wraps(upstream)
    def get_device(local_rank: int | None = None) -> torch.device:
        """The device whose tensors the default process group gathers."""
        if torch.distributed.get_backend() in KNOWN:
            return upstream(local_rank)  # type: ignore[no-any-return]
        # The current device behind torch.cuda, by a tensor: the redirection knows its name.
        index = torch.cuda.current_device() if local_rank is None else local_rank
        return torch.empty(0, device=f"cuda:{index}").device

    return get_device


PATCHES = (
    Patch(
        id="signal-device",
        target="megatron.training.dist_signal_handler:get_device",
        kind=Kind.WRAP,
        make=_make_get_device,
        why="it raises for every communication backend but nccl and gloo, such as hccl",
        upstream=f"{SOURCE}/training/dist_signal_handler.py",
        removed_when="upstream asks the process group for its device",
        loses="--exit-signal-handler stops at a RuntimeError",
        requires=REQUIRES,
        parameters=("local_rank",),
    ),
)
