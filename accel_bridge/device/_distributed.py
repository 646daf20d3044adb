"""torch.distributed: the device's communication backend where a script names NCCL.

``torch.distributed.get_backend`` is left alone and says what is really used (``gloo``, ...):
torch itself decides by it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.device._context import Context

NCCL: Final = "nccl"
#: The backend that torch gives to host tensors.
HOST_BACKEND: Final = "cpu:gloo"

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
_NCCL_STAND_IN: Final = type("ProcessGroupNCCL", (), {"Options": NcclOptions})


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
    if len(by_device) == 1 and device_type in by_device:
        return by_device[device_type]
    return ",".join(f"{device}:{name}" for device, name in by_device.items())


def redirect_distributed(context: Context) -> None:
    """Redirect process groups, barriers and device meshes."""
    if not dist.is_available():
        context.missing.append("torch.distributed")
        return
    replacements: dict[str, tuple[Any, Any]] = {}
    for name in (*GROUP_FUNCTIONS, "barrier"):
        original = getattr(dist, name, None)
        if original is None:
            context.missing.append(f"torch.distributed.{name}")
            continue
        new = functools.wraps(original)(_without_nccl(original, name, context))
        replacements[name] = (original, new)
    context.replace_everywhere("torch.distributed", replacements)
    if not hasattr(dist, "ProcessGroupNCCL"):
        context.journal.set(dist, "ProcessGroupNCCL", _NCCL_STAND_IN)


def _without_nccl(original: Callable[..., Any], name: str, context: Context) -> Callable[..., Any]:
    signature = inspect.signature(original)
    spec = context.spec
    dropped = [item for item in DROPPED_ARGUMENTS.get(name, ()) if item in signature.parameters]
    creates_group = name in GROUP_FUNCTIONS

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        for item in dropped:
            arguments.pop(item, None)
        if creates_group:
            _translate_group_arguments(arguments, name, context)
        return _call(original, signature, arguments)

    def _default_backend() -> str:
        return translate_backend(
            f"{HOST_BACKEND},cuda:{NCCL}", spec.type, spec.communication_backend
        )

    def _translate_group_arguments(arguments: dict[str, Any], name: str, context: Context) -> None:
        backend = arguments.get("backend")
        if backend is not None:
            arguments["backend"] = translate_backend(
                str(backend), spec.type, spec.communication_backend
            )
        elif name == "init_process_group":
            arguments["backend"] = _default_backend()
        if _is_nccl_options(arguments.get("pg_options")):
            del arguments["pg_options"]

    return call


def _call(
    original: Callable[..., Any], signature: inspect.Signature, arguments: dict[str, Any]
) -> Any:
    bound = inspect.BoundArguments(signature, arguments)  # type: ignore[arg-type]
    return original(*bound.args, **bound.kwargs)


def _is_nccl_options(options: object) -> bool:
    if isinstance(options, NcclOptions):
        return True
    nccl = getattr(dist, "ProcessGroupNCCL", None)
    return nccl is not None and isinstance(options, nccl.Options)
