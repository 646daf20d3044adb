"""Methods of ``Tensor`` and ``Module`` that name a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from accel_bridge.device._context import Context
from accel_bridge.device._legacy import LegacyTensorMeta

#: Methods that make a tensor like ``self``, with a ``device`` keyword.
NEW_METHODS: Final = (
    "new",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
)

CUDA_TYPE: Final = "torch.cuda"


def redirect_tensors(context: Context) -> None:
    """Redirect ``cuda``, ``to``, ``new_*``, ``type``, ``is_cuda`` and pinned memory."""
    tensor = torch.Tensor
    original_to = tensor.to
    for name in NEW_METHODS:
        context.wrap(tensor, name, lambda original: _new_method(original, context))
    for owner in (tensor, torch.nn.Module):
        context.wrap(owner, "to", lambda original: _to(original, context))
    context.wrap(tensor, "cuda", lambda _: _cuda(original_to, context))
    if context.spec.type == "cpu":
        context.wrap(tensor, "cpu", _copy_of)
    context.wrap(tensor, "type", lambda original: _type(original, context))
    context.wrap(
        torch,
        "set_default_tensor_type",
        lambda original: _set_default_tensor_type(original, context),
    )
    context.replace(tensor, "is_cuda", _is_cuda(context.spec.type))
    if not context.spec.indexed:
        context.wrap(tensor, "get_device", lambda original: _get_device(original, context))
    if not context.spec.pinned_memory:
        context.wrap(tensor, "pin_memory", lambda _: lambda self, device=None: self)
        context.wrap(tensor, "is_pinned", lambda _: lambda self, device=None: False)
    if not context.spec.streams:
        context.wrap(tensor, "record_stream", lambda _: lambda self, stream: None)


def _cuda_type_to_device(dtype: Any, context: Context) -> Any:
    """``torch.cuda.FloatTensor``, as a type or a name -> the name of that type on the device."""
    if isinstance(dtype, LegacyTensorMeta):
        dtype = f"{CUDA_TYPE}.{dtype.__name__}"
    if isinstance(dtype, str) and dtype.startswith(CUDA_TYPE + "."):
        return context.spec.tensor_type + dtype.removeprefix(CUDA_TYPE)
    return dtype


def _set_default_tensor_type(
    original: Callable[..., None], context: Context
) -> Callable[..., None]:
    def set_default_tensor_type(t: Any, /) -> None:
        original(_cuda_type_to_device(t, context))

    return set_default_tensor_type


def _new_method(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate = context.devices.translate
    drop_pin_memory = not context.spec.pinned_memory

    def new_method(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        if drop_pin_memory and "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        result: torch.Tensor = original(self, *args, **kwargs)
        return result

    return new_method


def _to(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate = context.devices.translate

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (translate(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        return original(self, *args, **kwargs)

    return to


def _cuda(original_to: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate, current = context.devices.translate, context.devices.current

    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        target = current if device is None else translate(device)
        result: torch.Tensor = original_to(
            self, target, non_blocking=non_blocking, memory_format=memory_format
        )
        # What was expanded on the host has memory for every element on a device.
        return result.clone() if result is self and _is_expanded(self) else result

    return cuda


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_contiguous()
        and any(
            stride == 0 and size > 1
            for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        )
    )


def _copy_of(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """On a device ``cpu()`` is a copy, which later changes of the tensor leave alone."""

    def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = original(self, *args, **kwargs)
        return result.clone() if result is self else result

    return cpu


def _type(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    spec = context.spec

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name: str = original(self)
            # A tensor subclass passes its methods on: then this function has run already.
            if self.device.type != spec.type or name.startswith(CUDA_TYPE):
                return name
            return CUDA_TYPE + name.removeprefix(spec.tensor_type)
        return original(self, _cuda_type_to_device(dtype, context), *args, **kwargs)

    return type_


def _is_cuda(device_type: str) -> property:
    def is_cuda(self: torch.Tensor) -> bool:
        """Whether the tensor is on the device that stands in for CUDA."""
        return self.device.type == device_type

    return property(is_cuda)


def _get_device(original: Callable[..., int], context: Context) -> Callable[..., int]:
    """A device without numbers reports -1; scripts build ``cuda:N`` from the answer."""
    spec = context.spec

    def get_device(self: torch.Tensor) -> int:
        return int(spec.module.current_device()) if self.is_cuda else original(self)

    return get_device
