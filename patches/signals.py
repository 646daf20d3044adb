"""Signals shared among all ranks, on communication backends that Megatron does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, around

if TYPE_CHECKING:
    import torch

#: Communication backends that upstream knows a device for.
KNOWN: Final = ("nccl", "gloo")


def _get_device(
    _context: PatchContext, call: Callable[[], Any], local_rank: int | None
) -> torch.device:
    """The device whose tensors the default process group gathers."""
    import torch

    if torch.distributed.get_backend() in KNOWN:
        return call()  # type: ignore[no-any-return]
    # The current device behind torch.cuda, found through a tensor: the redirection knows it.
    index = torch.cuda.current_device() if local_rank is None else local_rank
    return torch.empty(0, device=f"cuda:{index}").device


PATCHES = (
    megatron_patch(
        id="signal-device",
        target="megatron.training.dist_signal_handler:get_device",
        kind=Kind.WRAP,
        make=around(_get_device),
        why="it raises for every communication backend except nccl and gloo, e.g. for hccl",
        removed_when="upstream asks the process group for its device",
        loses="--exit-signal-handler stops with a RuntimeError",
        uses=("local_rank",),
    ),
)
