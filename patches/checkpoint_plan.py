"""Which files a rehearsed rank would write: Megatron's own save, up to where it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

#: Bytes of a zip that ``torch.save`` makes of one tensor, beside its numbers.
_TENSOR: Final = 1577


def files(args: Any, save: str, step: Mapping[str, Any]) -> list[list[Any]]:
    """[path below ``--save``, bytes] of each file of a checkpoint; nothing is left on the disk.

    :param save: the directory that the user named.
    :param step: arguments of ``train_step``: the model, its optimizer and its schedule.
    """
    import torch.distributed.checkpoint
    from megatron.core.dist_checkpointing import state_dict_utils
    from megatron.core.dist_checkpointing.strategies import fully_parallel
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    from megatron.training import checkpointing

    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:

        def put(path: Any, size: int) -> None:
            name = os.path.relpath(getattr(path, "name", path), directory)
            found[name] = found.get(name, 0) + size

        def save_file(data: Any, path: Any, *rest: Any, **kwargs: Any) -> None:
            if isinstance(path, (str, os.PathLike)) or hasattr(path, "name"):
                put(path, _size(data))

        def save_shards(strategy: Any, state: Any, path: Any, *rest: Any, **kwargs: Any) -> None:
            os.makedirs(path, exist_ok=True)
            sizes = _bins(_written(state), getattr(strategy, "thread_count", 1))
            for number, size in enumerate(sizes):
                put(os.path.join(path, f"__{torch.distributed.get_rank()}_{number}.distcp"), size)

        def save_local(**given: Any) -> None:
            raise NotImplementedError("who writes which of fsdp_dtensor's shards is not known")

        def unchecked(*rest: Any, **kwargs: Any) -> None:
            """Whether the other ranks' shards fit beside these is theirs to say."""

        for owner, given in (
            (TorchDistSaveShardedStrategy, {"save": save_shards, "async_save": save_shards}),
            (torch, {"save": save_file}),
            (torch.distributed.checkpoint, {"save": save_local}),
            (torch.distributed, {"all_gather_object": _peers(args)}),
            (fully_parallel, {"validate_sharding_integrity": unchecked}),
            (state_dict_utils, {"validate_sharding_integrity": unchecked}),
            (args, {"save": directory, "async_save": False}),
        ):
            stack.enter_context(_set(owner, given))
        names = ("model", "optimizer", "opt_param_scheduler")
        checkpointing.save_checkpoint(args.train_iters, *(step[name] for name in names), 0.0)
        for root, _, others in os.walk(directory):
            for name in others:
                put(os.path.join(root, name), os.path.getsize(os.path.join(root, name)))
    return [[os.path.join(save, name), size] for name, size in sorted(found.items())]


@contextlib.contextmanager
def _set(owner: Any, given: Mapping[str, Any]) -> Iterator[None]:
    """Attributes that an object has, for a while."""
    before = {name: vars(owner).get(name) for name in given if hasattr(owner, name)}
    for name in before:
        setattr(owner, name, given[name])
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _written(state: Any) -> list[tuple[bool, int]]:
    """(whether it is a tensor, bytes) of what this rank writes of a sharded state."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, is_main_replica

    shards = (one for one in nested_values(state) if is_main_replica(one.replica_id))
    return [(isinstance(one, ShardedTensor), _size(one.data)) for one in shards]


def _bins(items: list[tuple[bool, int]], number: int) -> list[int]:
    """Bytes of each file of a rank: what is no tensor in turn, then the largest to the emptiest."""
    loads, extra = [0] * number, [0] * number
    for place, size in enumerate(size for tensor, size in items if not tensor):
        extra[place % number] += size
    for size in sorted((size for tensor, size in items if tensor), reverse=True):
        loads[loads.index(min(loads))] += size
    return [load + more for load, more in zip(loads, extra, strict=True) if load + more]


def _peers(args: Any) -> Callable[..., None]:
    """``all_gather_object`` of shards: what the other ranks of a data-parallel group would say."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    experts = getattr(args, "expert_model_parallel_size", 1)
    apart: tuple[str, ...] = ()  # what each of them has a part of its own of
    if getattr(args, "use_torch_fsdp2", False):
        apart = ("",)
    elif args.use_distributed_optimizer:
        apart = ("optimizer.", "chained_")

    def of(shard: Any, rank: int, other: int) -> Any:
        name, replica = shard.key, shard.replica_id
        number = other
        if name.startswith(apart):
            return dataclasses.replace(shard, key=f"{name}@{other}")
        if ".experts." in name and experts > 1:
            number = other // experts
            if other % experts != rank % experts:
                name = f"{name}@{other % experts}"
        if isinstance(replica, tuple):
            replica = (*replica[:-1], number)
        return dataclasses.replace(shard, key=name, replica_id=replica)

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        import torch

        object_list[:] = [obj] * len(object_list)
        if isinstance(obj, list) and obj and isinstance(obj[0], ShardedTensor):
            rank = torch.distributed.get_rank(group)
            for other in range(len(object_list)):
                if other != rank:
                    object_list[other] = [of(shard, rank, other) for shard in obj]

    return all_gather_object


def _size(data: Any) -> int:
    """Bytes of what ``torch.save`` would write."""
    import torch.distributed.checkpoint
    from torch.utils._pytree import tree_flatten

    leaves, _ = tree_flatten(data)
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    size = sum(one.numel() * one.element_size() + _TENSOR for one in tensors)
    rest = [one for one in leaves if not isinstance(one, torch.Tensor)]
    with contextlib.suppress(Exception):  # what holds fakes has no bytes
        size += len(pickle.dumps(rest))
    return size
