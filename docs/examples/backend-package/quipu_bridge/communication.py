"""Messages between Quipus of one machine: through gloo, on the same memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NAME = "quipucom"

#: Methods of a process group that take tensors; torch renames some from version to version.
COLLECTIVES = """
_allgather_base _reduce_scatter_base all_gather_single all_gather_single_coalesced
all_to_all_single allgather allgather_coalesced allgather_into_tensor_coalesced allreduce
allreduce_coalesced alltoall alltoall_base broadcast gather recv recv_anysource reduce
reduce_scatter reduce_scatter_single reduce_scatter_single_coalesced
reduce_scatter_tensor_coalesced scatter send
""".split()


def _on_host(value: Any) -> Any:
    """Tensors become the processor's views of them, however deep in lists."""
    if isinstance(value, torch.Tensor):
        from quipu_bridge._driver import host

        return host(value)
    return [_on_host(item) for item in value] if isinstance(value, list) else value


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: QuipuGroup, *args: Any, **kwargs: Any) -> Any:
        given = {key: _on_host(value) for key, value in kwargs.items()}
        return getattr(self.host, name)(*(_on_host(value) for value in args), **given)

    call.__name__ = name
    return call


class QuipuGroup(dist.ProcessGroup):
    """A process group of gloo that takes Quipu tensors, and those of the host."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        #: The same ranks, for tensors of the host.
        self.host = dist.ProcessGroup(store, rank, size)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("quipu", store), rank, size, timeout=timeout)
        self.host._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.host._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all; whatever device the options name, the processor waits."""
        return self.host.barrier(dist.BarrierOptions())

    def _start_coalescing(self, device: torch.device) -> None:
        self.host._start_coalescing(torch.device("cpu"))

    def _end_coalescing(self, device: torch.device) -> Any:
        return self.host._end_coalescing(torch.device("cpu"))

    def getBackendName(self) -> str:
        """As torch asks it."""
        return NAME


for _name in COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(QuipuGroup, _name, _forwarded(_name))


@functools.cache
def register() -> None:
    """Tell torch.distributed of it."""
    dist.Backend.register_backend(NAME, QuipuGroup, devices=["quipu", "cpu"])
