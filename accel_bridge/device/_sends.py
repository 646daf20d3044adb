"""Sends of tensors that are emptied while they are under way.

Megatron frees what a pipeline stage has sent (``output.data = torch.empty(1)``) as soon as the send
was started: on a GPU the memory outlives its tensor until the stream is past the send. gloo reads
the tensor's memory when the receiver is ready, and would send what stands there by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from accel_bridge.device._context import Context


def held_sends(context: Context) -> None:
    """A part: ``isend`` sends an alias, which keeps the memory until it was sent."""
    if dist.is_available():
        context.wrap_everywhere(dist, ("isend",), lambda _, original: _of_an_alias(original))


def _of_an_alias(original: Callable[..., Any]) -> Callable[..., Any]:
    def isend(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(tensor.detach(), *args, **kwargs)

    return isend
