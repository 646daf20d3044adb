"""Collectives along the first dimension; random states and recomputation under TE's names.

Source of the names: transformer_engine/pytorch/distributed.py of Transformer Engine 2.13.

Legend: s this rank's part of the first dimension, p ranks of the group, ... further dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from accel_bridge import BridgeError

from ._random_states import (
    CudaRNGStatesTracker,
    get_all_rng_states,
    graph_safe_rng_available,
    is_graph_safe_rng_state,
    set_all_rng_states,
)
from ._recompute import (
    activation_recompute_forward,
    checkpoint,
    get_activation_recompute_contexts,
    has_te_modules,
    in_fp8_activation_recompute_phase,
    is_fp8_activation_recompute_enabled,
    use_reentrant_activation_recompute,
)
from .quantized_tensor import QuantizedTensorStorage

__all__ = [
    "CudaRNGStatesTracker",
    "activation_recompute_forward",
    "allreduce",
    "checkpoint",
    "gather_along_first_dim",
    "get_activation_recompute_contexts",
    "get_all_rng_states",
    "get_distributed_rank",
    "get_distributed_world_size",
    "graph_safe_rng_available",
    "has_te_modules",
    "in_fp8_activation_recompute_phase",
    "initialize_affine_weight_gpu",
    "is_fp8_activation_recompute_enabled",
    "is_graph_safe_rng_state",
    "reduce_scatter_along_first_dim",
    "set_all_rng_states",
    "set_tensor_model_parallel_attributes",
    "symmetric_all_reduce",
    "use_reentrant_activation_recompute",
]

Group = dist.ProcessGroup
Handle = dist.Work


def get_distributed_world_size(group: Group | None = None) -> int:
    """Ranks of the group; 1 without torch.distributed."""
    if not dist.is_initialized():
        return 1
    return dist.get_world_size() if group is None else group.size()


def get_distributed_rank(group: Group | None = None) -> int:
    """This process's rank in the group."""
    assert dist.is_initialized(), "torch.distributed is not initialized."
    return dist.get_rank() if group is None else group.rank()


def set_tensor_model_parallel_attributes(
    tensor: Any, is_parallel: bool, dim: int, stride: int
) -> None:
    """Mark a parameter with how tensor parallelism splits it."""
    for attribute in ("tensor_model_parallel", "partition_dim", "partition_stride"):
        assert not hasattr(tensor, attribute)
    tensor.tensor_model_parallel = is_parallel
    tensor.partition_dim = dim
    tensor.partition_stride = stride


def initialize_affine_weight_gpu(
    weight: torch.Tensor,
    init_method: Callable[[torch.Tensor], Any],
    get_rng_state_tracker: Callable[[], Any] | None,
    partition_dim: int = 0,
    stride: int = 1,
    set_tp_attributes: bool = True,
) -> None:
    """Set a weight's first values, and mark how it is split."""
    if set_tp_attributes:
        set_tensor_model_parallel_attributes(weight, True, partition_dim, stride)
    if get_rng_state_tracker is None:
        init_method(weight)
        return
    with get_rng_state_tracker().fork():
        init_method(weight)


def reduce_scatter_along_first_dim(
    inp: torch.Tensor, tp_group: Group | None, async_op: bool = False
) -> tuple[torch.Tensor, Handle | None]:
    """The sum over the ranks of inp [p s, ...], of which each rank gets its part [s, ...].

    :raises AssertionError: the first dimension is no multiple of the group's size.
    """
    size = get_distributed_world_size(tp_group)
    if size == 1:
        return inp, None
    rows = inp.shape[0]
    assert rows % size == 0, (
        f"Input tensor (shape {list(inp.shape)}) does not split into {size} parts"
    )
    out = torch.empty((rows // size, *inp.shape[1:]), dtype=inp.dtype, device=inp.device)
    handle = dist.reduce_scatter_tensor(out, inp.contiguous(), group=tp_group, async_op=async_op)
    return out, handle


def gather_along_first_dim(
    inp: torch.Tensor,
    process_group: Group | None,
    async_op: bool = False,
    quantizer: Any = None,
) -> tuple[torch.Tensor, Any]:
    """Every rank's inp [s, ...], one after the other: [p s, ...].

    :param quantizer: the result is quantized by it; FP8 data with one scale travels as bytes.
    """
    size = get_distributed_world_size(process_group)
    if quantizer is not None or isinstance(inp, QuantizedTensorStorage):
        from ._quantized_gather import gather_quantized

        return gather_quantized(inp, process_group, size, async_op, quantizer)
    if size == 1:
        return inp, None
    out = torch.empty((inp.shape[0] * size, *inp.shape[1:]), dtype=inp.dtype, device=inp.device)
    handle = dist.all_gather_into_tensor(
        out, inp.contiguous(), group=process_group, async_op=async_op
    )
    return out, handle


def allreduce(
    inp: torch.Tensor, tp_group: Group | None = None, async_op: bool = False
) -> tuple[torch.Tensor, Handle | None]:
    """The sum over the ranks, in place."""
    if get_distributed_world_size(tp_group) == 1:
        return inp, None
    return inp, dist.all_reduce(inp, group=tp_group, async_op=async_op)


def symmetric_all_reduce(
    inp: torch.Tensor,
    tp_group: Group | None = None,
    async_op: bool = False,
    all_reduce_type: str = "multimem_all_reduce",
) -> tuple[torch.Tensor, Handle | None]:
    """The sum over the ranks, in place, through memory that all ranks of a host can reach.

    :param all_reduce_type: ``multimem_all_reduce``, ``two_shot``, ``one_shot``, or ``nccl`` for an
        ordinary all-reduce.
    :raises TypeError: another type.
    :raises BridgeError: the device has no symmetric memory.
    """
    assert async_op is False, "Async symmetric ops no supported yet"
    if get_distributed_world_size(tp_group) == 1:
        return inp, None
    if all_reduce_type == "nccl":
        return allreduce(inp, tp_group)
    operators = {
        "multimem_all_reduce": "multimem_all_reduce_",
        "two_shot": "two_shot_all_reduce_",
        "one_shot": "one_shot_all_reduce",
    }
    if all_reduce_type not in operators:
        raise TypeError(f"All reduce type {all_reduce_type} is not supported.")
    group = dist.distributed_c10d._get_default_group() if tp_group is None else tp_group
    name = group.group_name
    try:
        shared = _symmetric_memory(inp.numel(), inp.dtype, inp.device, group)
    except RuntimeError as error:
        raise BridgeError(
            f"symmetric_ar_type={all_reduce_type!r} needs symmetric memory, which cannot be had",
            evidence=str(error).splitlines()[0],
            next="leave symmetric_ar_type out: an ordinary all-reduce is used then",
        ) from error
    shared.copy_(inp.reshape(-1))
    result = getattr(torch.ops.symm_mem, operators[all_reduce_type])(shared, "sum", name)
    inp.copy_(result.view(inp.shape))
    return inp, None


@functools.cache
def _symmetric_memory(
    size: int, dtype: torch.dtype, device: torch.device, group: Group
) -> torch.Tensor:
    from torch.distributed import _symmetric_memory as symmetric

    memory = symmetric.empty(size, dtype=dtype, device=device)
    symmetric.rendezvous(memory, group=group)
    return memory


def _get_module_fsdp_state(module: Any) -> Any:
    """The state of fully sharded data parallelism (torch's second) of the module around it.

    :raises RuntimeError: neither the module nor one around it is sharded.
    """
    if hasattr(module, "_get_fsdp_state"):
        return module._get_fsdp_state()
    known = getattr(module, "_te_cached_parent_fsdp_state", None)
    if known is not None:
        return known
    from torch.distributed._composable_state import _module_state_mapping

    around = [
        (len(members), place, whole)
        for place, whole in enumerate(_module_state_mapping)
        if module in (members := list(whole.modules()))
    ]
    if not around:
        raise RuntimeError(
            "Module is not FSDP-wrapped and does not have any FSDP-wrapped parent modules."
        )
    state = min(around)[2]._get_fsdp_state()  # type: ignore[operator]
    # In __dict__: the state holds modules, which must not become children.
    module.__dict__["_te_cached_parent_fsdp_state"] = state
    return state
