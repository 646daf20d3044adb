"""Gathers of tensors that differ in size, for a backend that refuses them.

NCCL serves ``all_gather`` of a list whose tensors have different sizes by one broadcast from every
rank (Megatron's layer-wise optimizers rely on it); gloo stops at the second size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from accel_bridge.device._context import Context


def uneven_gathers(context: Context) -> None:
    """A part: ``all_gather`` takes tensors of different sizes."""
    if dist.is_available():
        context.wrap_everywhere(dist, ["all_gather"], lambda name, original: _any_size(original))


class _Works:
    """Several operations that are waited for as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them."""
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all of them are done."""
        return all(work.is_completed() for work in self._works)


def _any_size(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        outputs: Sequence[torch.Tensor] = arguments["tensor_list"]
        if len({output.numel() for output in outputs}) < 2:
            return original(*args, **kwargs)
        group, own = arguments.get("group"), arguments["tensor"]
        works = []
        # Every rank sees the same sizes, so every rank takes this way, in this order.
        for rank, output in enumerate(outputs):
            source = dist.get_global_rank(group, rank) if group is not None else rank
            if rank == dist.get_rank(group):
                output.detach().view(-1).copy_(own.detach().reshape(-1))
            works.append(dist.broadcast(output, source, group=group, async_op=True))
        gathered = _Works([work for work in works if work is not None])
        if arguments.get("async_op"):
            return gathered
        gathered.wait()
        return None

    return call
