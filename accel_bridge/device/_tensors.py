"""Methods of ``Tensor`` and ``Module`` that name a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from accel_bridge.device._context import Context
from accel_bridge.device._cuda_module import LegacyTensorMeta
from accel_bridge.device._devices import PLAIN, Sides, Target

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

_original_device: Final = torch._C.TensorBase.device.__get__


def redirect_tensors(context: Context) -> None:
    """Redirect ``cuda``, ``to``, ``new_*``, ``type``, ``is_cuda`` and pinned memory."""
    tensor, module = torch.Tensor, torch.nn.Module
    original_to = tensor.to
    sides = context.sides
    for name in NEW_METHODS:
        context.wrap(tensor, name, functools.partial(_new_method, context=context))
    # Subclasses say where their tensors are.
    context.wrap(tensor, "_make_wrapper_subclass", functools.partial(_wrapper, context=context))
    if sides is None:
        for owner in (tensor, module):
            context.wrap(owner, "to", functools.partial(_to, context=context))
        context.replace(tensor, "is_cuda", _is_cuda(context.spec.type))
    else:
        context.wrap(tensor, "to", functools.partial(_to_a_side, context=context, sides=sides))
        context.wrap(module, "to", functools.partial(_module_to, context=context, sides=sides))
        context.wrap(tensor, "cpu", functools.partial(_cpu, sides=sides))
        context.replace(tensor, "is_cuda", _is_on_device(sides))
        context.replace(tensor, "device", _device(sides))
    context.replace(tensor, "__cuda_array_interface__", property(_no_cuda_address))
    context.wrap(tensor, "cuda", lambda _: _cuda(original_to, context))
    context.wrap(tensor, "type", lambda original: _type(original, context))
    context.wrap(
        torch,
        "set_default_tensor_type",
        lambda original: _set_default_tensor_type(original, context),
    )
    if not context.spec.indexed:
        context.wrap(tensor, "get_device", lambda original: _get_device(original, context))
    if not context.spec.pinned_memory:
        context.wrap(tensor, "pin_memory", lambda _: _pin_memory(sides))
        context.wrap(tensor, "is_pinned", lambda _: _is_pinned(sides))
    if not context.spec.streams:
        context.wrap(tensor, "record_stream", lambda _: lambda self, stream: None)


def _cuda_type_to_device(dtype: Any, context: Context) -> Any:
    """``torch.cuda.FloatTensor``, as a type or a name -> the name of that type on the device."""
    if isinstance(dtype, LegacyTensorMeta):
        dtype = f"{CUDA_TYPE}.{dtype.__name__}"
    if isinstance(dtype, str) and dtype.startswith(CUDA_TYPE + "."):
        return context.spec.tensor_type + dtype.removeprefix(CUDA_TYPE)
    return dtype


def _is_cuda_type(dtype: Any) -> bool:
    return isinstance(dtype, LegacyTensorMeta) or (
        isinstance(dtype, str) and dtype.startswith(CUDA_TYPE + ".")
    )


def _set_default_tensor_type(
    original: Callable[..., None], context: Context
) -> Callable[..., None]:
    def set_default_tensor_type(t: Any, /) -> None:
        original(_cuda_type_to_device(t, context))
        if context.sides is not None:
            context.sides.set_default("device" if _is_cuda_type(t) else "host")

    return set_default_tensor_type


def _new_method(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate, sides = context.devices.translate, context.sides
    drop_pin_memory = not context.spec.pinned_memory
    # The oldest method of these may share memory with what it is given.
    marks = original.__name__ != "new"

    def new_method(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = translate(device)
        if drop_pin_memory and "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        result: torch.Tensor = original(self, *args, **kwargs)
        if sides is not None and marks:
            target = sides.like(self) if device is None else sides.named(device)
            if target in ("host", "device"):
                sides.mark(result, target)
        return result

    return new_method


def _wrapper(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate, sides = context.devices.translate, context.sides

    def _make_wrapper_subclass(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None:
            return original(*args, **kwargs)
        made = original(*args, **(kwargs | {"device": translate(device)}))
        if sides is not None and sides.named(device) == "device":
            sides.mark(made, "device")
        return made

    return _make_wrapper_subclass


def _to(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate = context.devices.translate

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (translate(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        return original(self, *args, **kwargs)

    return to


def _to_a_side(original: Callable[..., Any], context: Context, sides: Sides) -> Callable[..., Any]:
    translate = context.devices.translate

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("device")
        if first is None and not args:
            first = kwargs.get("tensor")
        # Exact types first: most calls name a dtype.
        if first is None or type(first) is torch.dtype:
            return original(self, *args, **kwargs)
        if isinstance(first, torch.Tensor):
            target = sides.like(first)
        else:
            target = sides.of_device_named(self, first)
            if args:
                args = (translate(first), *args[1:])
            else:
                kwargs["device"] = translate(first)
        return sides.moved(self, original(self, *args, **kwargs), target)

    return to


def _module_to(original: Callable[..., Any], context: Context, sides: Sides) -> Callable[..., Any]:
    """Torch's parser makes new device objects: these say the side by their value."""
    translate = context.devices.translate

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        like = args[0] if args else kwargs.get("tensor")
        if isinstance(like, torch.Tensor):
            kwargs.pop("tensor", None)
            kwargs["dtype"] = like.dtype
            args = (sides.device_named(sides.like(like)), *args[1:])
        elif args:
            args = (_on_host(args[0]), *args[1:])
        elif "device" in kwargs:
            kwargs["device"] = _on_host(kwargs["device"])
        return original(self, *args, **kwargs)

    def _on_host(device: Any) -> Any:
        if device is None or type(device) is torch.dtype:
            return device
        translate(device)  # a number beyond those of this machine is refused
        target = sides.named(device)
        return device if target == "elsewhere" else sides.device_named(target)

    return to


def _cuda(original_to: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate, current = context.devices.translate, context.devices.current
    sides = context.sides

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
        return result if sides is None else sides.moved(self, result, "device")

    return cuda


def _cpu(original: Callable[..., torch.Tensor], sides: Sides) -> Callable[..., torch.Tensor]:
    def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = sides.moved(self, original(self, *args, **kwargs), "host")
        return result

    return cpu


def _pin_memory(sides: Sides | None) -> Callable[..., torch.Tensor]:
    """A copy, as page-locked memory is; what is page-locked stays itself."""

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if sides is None or sides.of(self) == "pinned":
            return self
        result = self.detach().clone()
        sides.mark(result, "pinned")
        return result

    return pin_memory


def _is_pinned(sides: Sides | None) -> Callable[..., bool]:
    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return sides is not None and sides.of(self) == "pinned"

    return is_pinned


def _type(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    spec = context.spec

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name: str = original(self)
            # A tensor subclass passes its methods on: then this function has run already.
            if not self.is_cuda or name.startswith(CUDA_TYPE):
                return name
            return CUDA_TYPE + name.removeprefix(spec.tensor_type)
        result = original(self, _cuda_type_to_device(dtype, context), *args, **kwargs)
        if context.sides is None or type(dtype) is torch.dtype:
            return result
        target: Target = "device" if _is_cuda_type(dtype) else "host"
        return context.sides.moved(self, result, target)

    return type_


def _is_cuda(device_type: str) -> property:
    def is_cuda(self: torch.Tensor) -> bool:
        """Whether the tensor is on the device that stands in for CUDA."""
        return self.device.type == device_type

    return property(is_cuda)


def _no_cuda_address(self: torch.Tensor) -> None:
    """CUDA cannot read this memory, and libraries would."""
    raise AttributeError("__cuda_array_interface__: the tensor is not in CUDA's memory")


def _is_on_device(sides: Sides) -> property:
    def is_cuda(self: torch.Tensor) -> bool:
        """Whether the tensor is on the device; true where nobody knows."""
        found = _original_device(self) if type(self) in PLAIN else self.device
        return found.type == "cpu" and sides.of(self) in ("device", None)

    return property(is_cuda)


def _device(sides: Sides) -> property:
    def device(self: torch.Tensor) -> torch.device:
        if type(self) not in PLAIN and has_torch_function_unary(self):
            # A subclass notes its answer for the property that it found: torch's own, or this one.
            mine = torch.Tensor.device.__get__
            try:
                answer: torch.device = handle_torch_function(_original_device, (self,), self)
            except (NotImplementedError, RuntimeError, TypeError):
                answer = handle_torch_function(mine, (self,), self)
            return answer
        found = _original_device(self)
        return sides.device_of(self) if found.type == "cpu" else found

    device.__doc__ = torch.Tensor.device.__doc__
    return property(device)


def _get_device(original: Callable[..., int], context: Context) -> Callable[..., int]:
    """A device without numbers reports -1; scripts build ``cuda:N`` from the answer."""
    spec = context.spec

    def get_device(self: torch.Tensor) -> int:
        return int(spec.module.current_device()) if self.is_cuda else original(self)

    return get_device
