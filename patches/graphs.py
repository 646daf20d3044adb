"""CUDA graphs of layers: memory that torch's own operators keep for the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host

if TYPE_CHECKING:
    import torch


def _make_record(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    tag = context.module._tag_cudagraph_buffer_saved_for_backward

    def record_graph_capture(self: Any, args: Any, kwargs: Any) -> Any:
        """As upstream; what the layer keeps of its inputs and outputs is marked as kept."""
        compute = self.func
        self.func = functools.partial(_observed, compute, self.get_tensors, tag)
        try:
            return upstream(self, args, kwargs)
        finally:
            self.func = compute

    return record_graph_capture


def _observed(
    compute: Callable[..., Any],
    tensors_of: Callable[..., list[torch.Tensor]],
    tag: Callable[[torch.Tensor], None],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The layer's result; ``tag`` gets its inputs and outputs that the backward pass will read.

    torch tells its hooks about every tensor that is kept, whether Python or C++ keeps it, but
    shows them other Python objects: the memory tells which is which.
    """
    from torch.autograd.graph import saved_tensors_hooks

    kept: set[int] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.update(_memory(tensor))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compute(*args, **kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    for tensor in (*tensors_of(args, kwargs), *tensors_of(outputs)):
        if kept.intersection(_memory(tensor)):
            tag(tensor)
    return result


def _memory(tensor: torch.Tensor) -> set[int]:
    """Where a tensor's numbers lie; an FP8 tensor has none of its own, but parts."""
    import torch

    try:
        return {tensor.untyped_storage().data_ptr()}
    except RuntimeError:
        parts = [part for part in vars(tensor).values() if isinstance(part, torch.Tensor)]
        return set().union(*map(_memory, parts))


def _without_graphs(host: Host) -> str | None:
    if not host.features.cuda_graphs:
        return f"the {host.backend.name} device has no graphs"
    return None


PATCHES = (
    megatron_patch(
        id="graph-saved-tensors",
        target="megatron.core.transformer.cuda_graphs:_CudaGraphRunner.record_graph_capture",
        kind=Kind.WRAP,
        make=_make_record,
        why="between a layer's forward and backward graph, memory that only C++ keeps is reused",
        removed_when="upstream asks saved_tensors_hooks, not save_for_backward, what is kept",
        loses="with --cuda-graph-impl local, small models get wrong gradients of their norms",
        requires="megatron-core>=0.19.dev0",
        elsewhere="the memory is released after the backward graph",
        skip_when=_without_graphs,
    ),
)
