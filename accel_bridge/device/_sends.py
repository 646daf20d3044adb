"""Sends of tensors that are emptied while they are under way, and transfers waited for twice.

Megatron frees what a pipeline stage has sent (``output.data = torch.empty(1)``) as soon as the send
was started: on a GPU the memory outlives its tensor until the stream is past the send. gloo reads
the tensor's memory when the receiver is ready, and would send what stands there by then.

Transformer Engine waits twice for the transfers of its ring attention. NCCL's second wait returns
at once; gloo's waits for a transfer that never comes.
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


def repeated_waits(context: Context) -> None:
    """A part: what ``isend`` and ``irecv`` return is waited for once, however often it is asked."""
    if dist.is_available():
        context.wrap_everywhere(dist, ("isend", "irecv"), lambda _, original: _once(original))


def _once(original: Callable[..., Any]) -> Callable[..., Any]:
    def transfer(*args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        return work if work is None else _Transfer(work)

    return transfer


class _Transfer(dist.Work if dist.is_available() else object):  # type: ignore[misc]
    """A transfer that knows whether it was waited for."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self._work = work
        self._waited = False

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self._waited:
            return True
        result = self._work.wait(*args, **kwargs)
        self._waited = True  # not where it raised: a timeout may be waited for again
        return result

    def is_completed(self) -> bool:
        return self._waited or bool(self._work.is_completed())


def _delegated(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    return method


for _name in ("is_success", "exception", "source_rank", "_source_rank", "result", "get_future"):
    setattr(_Transfer, _name, _delegated(_name))


def _of_an_alias(original: Callable[..., Any]) -> Callable[..., Any]:
    def isend(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(tensor.detach(), *args, **kwargs)

    return isend
