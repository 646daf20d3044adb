"""Distributed checkpoints across specs and libraries, and asynchronous ones on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge._host import Host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, after, before

#: Suffix of the keys under which layers store state that is not a parameter (fp8 scales).
EXTRA_STATE = "_extra_state"


def _forget_extra_states(context: PatchContext, state: Any, folder: Any, strategy: Any) -> None:
    """Ask the checkpoint only for the extra states that it has; the others stay None, in place."""
    from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject

    stored = context.module.load_sharded_metadata(folder, strategy)

    def forget(value: Any) -> Any:
        missing = (
            isinstance(value, ShardedObject)
            and value.key.endswith(EXTRA_STATE)
            and value.unique_key not in stored
        )
        return LocalNonpersistentObject(None) if missing else value

    dict_list_map_inplace(forget, state)


def _copy(context: PatchContext, result: None, writer: Any) -> None:
    """Copy what will be written, as a transfer from a device would."""
    writer.write_buckets = [
        (path, key, (data, [(item, tensor.clone()) for item, tensor in tensors]))
        for path, key, (data, tensors) in writer.write_buckets
    ]


def _make_write_item(context: PatchContext) -> Callable[..., Any]:
    from torch.distributed.checkpoint import filesystem

    upstream = context.original
    assert context.signature is not None
    formats = getattr(filesystem, "SerializationFormat", None)
    asks = "serialization_format" in context.signature.parameters

    @functools.wraps(upstream)
    def _write_item(*args: Any, **kwargs: Any) -> Any:
        """As torch's, with the format that it has asked for since 2.7."""
        if asks and formats is not None and "serialization_format" not in kwargs:
            kwargs["serialization_format"] = formats.TORCH_SAVE
        return upstream(*args, **kwargs)

    return _write_item


def _copies_anyway(host: Host) -> str | None:
    if not host.features.tensors_on_host:
        return f"writing from the {host.backend.name} device copies to the host"
    return None


PATCHES = (
    megatron_patch(
        id="checkpoint-extra-state",
        target="megatron.core.dist_checkpointing.serialization:load",
        kind=Kind.WRAP,
        make=before(_forget_extra_states),
        why="Transformer Engine's norms store an empty extra state and torch's do not, so "
        "checkpoints of one spec lack a key that the other expects",
        removed_when="upstream treats a missing extra state as empty",
        loses="checkpoints of the local spec do not load into Transformer Engine's spec",
        uses=("sharded_state_dict", "checkpoint_dir", "sharded_strategy"),
    ),
    megatron_patch(
        id="async-checkpoint-copy",
        target="megatron.core.dist_checkpointing.strategies.filesystem_async:"
        "FileSystemWriterAsync.prepare_write_data",
        kind=Kind.WRAP,
        make=after(_copy),
        why="the writer shares the tensors' memory, which training overwrites during the write",
        removed_when="upstream copies host tensors before an asynchronous write",
        loses="--async-save can write a checkpoint that mixes two iterations",
        uses=("self",),
        skip_when=_copies_anyway,
    ),
    megatron_patch(
        id="checkpoint-item-format",
        target="megatron.core.dist_checkpointing.strategies.filesystem_async:_write_item",
        kind=Kind.WRAP,
        make=_make_write_item,
        why="it is torch's private function, which has asked for a format since torch 2.7",
        removed_when="Megatron 0.12 is not supported any more",
        loses="Megatron 0.12 saves no distributed checkpoint with torch 2.7 or newer",
        requires="megatron-core>=0.12,<0.14",
        elsewhere="since 0.14 Megatron passes the format",
    ),
)
