"""torch.distributed: the device's communication backend where a script names NCCL.

- ``get_backend`` is left alone and reports what is really used: torch itself relies on it.
- ``device_id`` of process groups and ``device_ids`` of barriers are dropped, as are options made
  for NCCL: no other backend knows them.
- The ranks of a new group meet at a place that its members name. Ranks that create different groups
  by one call (each its own pair, say) met at the same place, which NCCL, connecting at the first
  use, forgives, and gloo does not.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DataParallel, DistributedDataParallel

from accel_bridge.device._context import Context
from accel_bridge.device.device import Device

NCCL: Final = "nccl"
#: What a CUDA build of torch uses when none is named.
DEFAULT_BACKENDS: Final = f"cpu:gloo,cuda:{NCCL}"

#: Functions with a ``backend`` argument.
GROUP_FUNCTIONS: Final = (
    "init_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
)

#: Arguments that only NCCL understands, by function.
DROPPED_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "init_process_group": ("device_id",),
    "new_group": ("device_id",),
    "barrier": ("device_ids",),
}


class NcclOptions:
    """Stands in for ``ProcessGroupNCCL.Options`` where torch was built without NCCL."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = types.SimpleNamespace()


#: Stands in for ``torch.distributed.ProcessGroupNCCL``.
_NCCL_SHIM: Final = type("ProcessGroupNCCL", (), {"Options": NcclOptions})


def translate_backend(backend: str, device_type: str, replacement: str) -> str:
    """``nccl`` -> ``replacement``, alone or in a list such as ``cpu:gloo,cuda:nccl``.

    >>> translate_backend("cpu:gloo,cuda:nccl", "npu", "hccl")
    'cpu:gloo,npu:hccl'
    >>> translate_backend("cpu:gloo,cuda:nccl", "cpu", "gloo")
    'gloo'
    """
    lowered = backend.lower()
    if ":" not in lowered:
        return replacement if lowered == NCCL else backend
    by_device: dict[str, str] = {}
    for entry in lowered.split(","):
        device, _, name = entry.strip().partition(":")
        device = device_type if device == "cuda" else device
        by_device[device] = replacement if name == NCCL else name
    if list(by_device) == [device_type]:
        return by_device[device_type]
    return ",".join(f"{device}:{name}" for device, name in by_device.items())


def redirect_distributed(context: Context) -> None:
    """Redirect process groups, barriers and device meshes."""
    if not dist.is_available():
        context.missing.append("torch.distributed")
        return
    context.wrap_everywhere(
        dist,
        (*GROUP_FUNCTIONS, "barrier"),
        lambda name, original: _without_nccl(original, name, context.spec),
    )
    context.wrap(dist.distributed_c10d, "_new_process_group_helper", _meeting_by_members)
    context.wrap(DeviceMesh, "__init__", lambda original: _device_mesh(original, context.spec))
    if not context.spec.indexed:
        context.wrap(DistributedDataParallel, "__init__", _without_device_ids)
        context.wrap(DataParallel, "__init__", _on_one_device)
        context.wrap(torch.nn.parallel, "data_parallel", _run_on_one_device)
    if not hasattr(dist, "ProcessGroupNCCL"):
        context.journal.set(dist, "ProcessGroupNCCL", _NCCL_SHIM)


def _without_nccl(original: Callable[..., Any], name: str, spec: Device) -> Callable[..., Any]:
    signature = inspect.signature(original)
    dropped = DROPPED_ARGUMENTS.get(name, ())
    creates_group = name in GROUP_FUNCTIONS

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs)
        for item in dropped:
            arguments.arguments.pop(item, None)
        if creates_group:
            _translate_group_arguments(arguments.arguments, name, spec)
        return original(*arguments.args, **arguments.kwargs)

    return call


def _translate_group_arguments(arguments: dict[str, Any], name: str, spec: Device) -> None:
    backend = arguments.get("backend")
    if backend is None and name == "init_process_group":
        backend = DEFAULT_BACKENDS
    if backend is not None:
        arguments["backend"] = translate_backend(
            str(backend), spec.type, spec.communication_backend
        )
    if _is_nccl_options(arguments.get("pg_options")):
        del arguments["pg_options"]


def _is_nccl_options(options: object) -> bool:
    nccl = getattr(dist, "ProcessGroupNCCL", None)
    return nccl is not None and isinstance(options, nccl.Options)


def _meeting_by_members(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    if not {"store", "global_ranks_in_group"} <= set(signature.parameters):
        return original

    def create(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs)
        # The default group names none.
        if ranks := arguments.arguments["global_ranks_in_group"]:
            place = f"ranks {'_'.join(map(str, ranks))}/"
            store = arguments.arguments["store"]
            arguments.arguments["store"] = dist.distributed_c10d.PrefixStore(place, store)
        return original(*arguments.args, **arguments.kwargs)

    return create


def _device_mesh(original: Callable[..., None], spec: Device) -> Callable[..., None]:
    signature = inspect.signature(original)

    def __init__(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs)
        if arguments.arguments.get("device_type") == "cuda":
            arguments.arguments["device_type"] = spec.type
        original(*arguments.args, **arguments.kwargs)

    return __init__


def _without_device_ids(original: Callable[..., None]) -> Callable[..., None]:
    """torch accepts device numbers only for modules on numbered devices."""
    signature = inspect.signature(original)

    def __init__(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs)
        arguments.arguments.pop("device_ids", None)
        arguments.arguments.pop("output_device", None)
        original(*arguments.args, **arguments.kwargs)

    return __init__


def _on_one_device(original: Callable[..., None]) -> Callable[..., None]:
    """As torch does on a machine without an accelerator: call the module itself."""

    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module = module.cuda()
        self.device_ids = []

    return __init__


def _run_on_one_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def data_parallel(
        module: Any,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: Any = None,
    ) -> Any:
        inputs = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        return module(*inputs, **(module_kwargs or {}))

    return data_parallel
