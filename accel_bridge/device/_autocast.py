"""Automatic mixed precision: the device type ``cuda`` in its functions and classes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.amp

from accel_bridge.device._context import Context

#: Functions that take a device type first; without one they mean CUDA.
FUNCTIONS: Final = ("get_autocast_dtype", "is_autocast_enabled")
#: Functions that mean CUDA, and the general function with a device type that answers them.
CUDA_FUNCTIONS: Final = {
    "get_autocast_gpu_dtype": "get_autocast_dtype",
    "set_autocast_gpu_dtype": "set_autocast_dtype",
}
#: Setters with a device type and a value; ``set_autocast_enabled`` may omit the device type.
SETTERS: Final = ("set_autocast_dtype", "set_autocast_enabled")


def redirect_autocast(context: Context) -> None:
    """Redirect ``torch.autocast("cuda")``, gradient scalers and the autocast state."""
    device_type = context.spec.type
    general = {new: getattr(torch, new) for new in CUDA_FUNCTIONS.values()}
    for name in FUNCTIONS:
        context.wrap(torch, name, lambda original: _getter(original, device_type))
    for name in SETTERS:
        context.wrap(torch, name, lambda original: _setter(original, device_type))
    for name, answer in CUDA_FUNCTIONS.items():
        context.answer(torch, name, functools.partial(general[answer], device_type))
    context.wrap(torch.autocast, "__init__", lambda original: _method(original, device_type))
    context.wrap(torch.amp.GradScaler, "__init__", lambda original: _method(original, device_type))
    for owner in (torch.amp, torch.amp.autocast_mode):
        context.wrap(
            owner, "is_autocast_available", lambda original: _getter(original, device_type)
        )


def _translated(value: Any, device_type: str) -> Any:
    return device_type if value == "cuda" else value


def _getter(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    def get(requested: str = "cuda") -> Any:
        return original(_translated(requested, device_type))

    return get


def _setter(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    def set_(*args: Any) -> None:
        if len(args) == 1:
            args = (device_type, *args)
        original(_translated(args[0], device_type), *args[1:])

    return set_


def _method(original: Callable[..., None], device_type: str) -> Callable[..., None]:
    """Constructors whose first argument is a device type."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            args = (_translated(args[0], device_type), *args[1:])
        for name in ("device", "device_type"):
            if name in kwargs:
                kwargs[name] = _translated(kwargs[name], device_type)
        original(self, *args, **kwargs)

    return __init__
