"""Distributed checkpoints across specs and libraries, and asynchronous ones on the host."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, after, around, before
from accel_bridge.patching.host import Host

#: Suffix of the keys under which layers store state that is not a parameter (fp8 scales).
EXTRA_STATE = "_extra_state"


def _forget_extra_states(context: PatchContext, state: Any, directory: Any, strategy: Any) -> None:
    """Ask the checkpoint only for the extra states that it has; the others stay None, in place."""
    from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject

    stored = context.module.load_sharded_metadata(directory, strategy)

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


def _make_to_local(context: PatchContext) -> Callable[..., Any]:
    import torch
    from torch.distributed.tensor import DTensor

    upstream = context.original
    given = context.argument("tensor")
    plain = (torch.Tensor, torch.nn.Parameter)

    def to_local_if_dtensor(*args: Any, **kwargs: Any) -> Any:
        """The local tensor itself: checkpoints find it by identity."""
        tensor = given.get(args, kwargs)
        if type(tensor) in plain:  # hundreds of gradients in every step
            return tensor
        if isinstance(tensor, DTensor):
            return tensor._local_tensor
        return upstream(*args, **kwargs)

    return to_local_if_dtensor


def _make_write_item(context: PatchContext) -> Callable[..., Any]:
    from torch.distributed.checkpoint import filesystem

    upstream = context.original
    assert context.signature is not None
    formats = getattr(filesystem, "SerializationFormat", None)
    asks = "serialization_format" in context.signature.parameters

    def _write_item(*args: Any, **kwargs: Any) -> Any:
        """As torch's, with the format that it has asked for since 2.7."""
        if asks and formats is not None and "serialization_format" not in kwargs:
            kwargs["serialization_format"] = formats.TORCH_SAVE
        return upstream(*args, **kwargs)

    return _write_item


class _Torch(ModuleType):
    """torch, whose ``empty`` takes the properties of a tensor in a checkpoint."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    def empty(self, *size: Any, strides: tuple[int, ...] | None = None, **properties: Any) -> Any:
        """An empty tensor; on ``meta`` its strides mean nothing."""
        import torch

        return torch.empty(*size, **properties)


def _make_torch(context: PatchContext) -> ModuleType:
    return _Torch("torch")


def _have_no_strides(host: Host) -> str | None:
    from torch.distributed.checkpoint.metadata import TensorProperties

    return None if hasattr(TensorProperties, "strides") else "this torch writes no strides"


def _async_support(context: PatchContext, call: Callable[[], Any]) -> bool:
    """False for a version that is too old, instead of an error in Megatron's own import."""
    try:
        return bool(call())
    except (AssertionError, AttributeError) as error:  # 0.4 and older have no __version__
        context.host.say(
            f"nvidia-resiliency-ext is too old for Megatron, which does without it: {error}"
        )
        return False


def _transform(_context: PatchContext, call: Callable[[], Any]) -> Any:
    """As upstream; a quantized weight is written with the numbers that it stands for."""
    value = call()
    return value.dequantize() if "dequantize" in type(value).__dict__ else value


def _dequantizes(host: Host) -> str | None:
    if host.backend.device() is None:
        return "Megatron dequantizes what it writes from a CUDA device"
    return None


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
        id="resiliency-version",
        target="megatron.core.dist_checkpointing.strategies.nvrx:has_nvrx_async_support",
        kind=Kind.WRAP,
        make=around(_async_support),
        why="on import it asserts a version of nvidia-resiliency-ext that PyPI does not have (0.6; "
        "the newest is 0.4.1)",
        removed_when="upstream answers no for an older version",
        loses="beside an older nvidia-resiliency-ext Megatron cannot be imported",
        requires="megatron-core>=0.17",
        elsewhere="before 0.17 Megatron does not ask",
    ),
    megatron_patch(
        id="checkpoint-quantized",
        target="megatron.core.dist_checkpointing.strategies.torch:MCoreSavePlanner."
        "transform_object",
        kind=Kind.WRAP,
        make=around(_transform),
        why="FP8 weights are dequantized only on a device called cuda; elsewhere the quantized "
        "object itself is pickled, which no load takes",
        removed_when="upstream dequantizes on every device",
        loses="a checkpoint with FP8 weights cannot be loaded again",
        skip_when=_dequantizes,
    ),
    megatron_patch(
        id="checkpoint-local-shard",
        target="megatron.core.utils:to_local_if_dtensor",
        kind=Kind.WRAP,
        make=_make_to_local,
        why="newer torch makes a view in DTensor.to_local; the optimizer's checkpoint looks for "
        "the shard itself",
        removed_when="upstream compares the tensors' storage",
        loses="--use-torch-fsdp2 saves no checkpoint with torch 2.13",
        uses=("tensor",),
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
    megatron_patch(
        id="checkpoint-strides",
        target="megatron.core.dist_checkpointing.strategies.torch:torch",
        kind=Kind.ATTRIBUTE,
        make=_make_torch,
        why="torch 2.15 stores strides, which Megatron gives to torch.empty",
        removed_when="upstream names what it needs",
        loses="torch 2.15 loads no distributed checkpoint",
        skip_when=_have_no_strides,
    ),
)
