"""Automatic mixed precision: the device type ``cuda`` in its functions and classes.

torch keeps a state for each device type. ``torch.autocast("cuda")`` sets the device's, which
decides how operations run, and CUDA's, which scripts read; so no function that reads needs a
wrapper, which TorchScript and PyTorch's compiler would not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.amp

from accel_bridge.device._context import Context

#: Functions with a device type and a value; without a device type they mean CUDA.
SETTERS: Final = ("set_autocast_dtype", "set_autocast_enabled")
#: Attribute of a ``torch.autocast`` for CUDA: CUDA's state outside it, while inside.
_OUTSIDE: Final = "_accel_bridge_outside"


def redirect_autocast(context: Context) -> None:
    """Redirect ``torch.autocast("cuda")``, gradient scalers and the autocast state."""
    device_type = context.spec.type
    set_dtype, set_enabled = (getattr(torch, name) for name in SETTERS)
    for name in SETTERS:
        context.wrap(torch, name, lambda original: _setter(original, device_type))
    context.wrap(
        torch,
        "set_autocast_gpu_dtype",
        lambda _: lambda dtype: torch.set_autocast_dtype("cuda", dtype),
    )
    context.wrap(torch.autocast, "__init__", lambda original: _autocast(original, device_type))
    context.wrap(
        torch.autocast, "__enter__", lambda original: _enter(original, set_enabled, set_dtype)
    )
    context.wrap(
        torch.autocast, "__exit__", lambda original: _exit(original, set_enabled, set_dtype)
    )
    context.wrap(torch.amp.GradScaler, "__init__", lambda original: _method(original, device_type))


def _setter(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    def set_(*args: Any) -> None:
        if len(args) == 1:
            args = ("cuda", *args)
        original(*args)
        if args[0] == "cuda":
            original(device_type, *args[1:])

    return set_


def _method(original: Callable[..., None], device_type: str) -> Callable[..., None]:
    """Constructors whose first argument is a device type."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            args = (device_type if args[0] == "cuda" else args[0], *args[1:])
        for name in ("device", "device_type"):
            if kwargs.get(name) == "cuda":
                kwargs[name] = device_type
        original(self, *args, **kwargs)

    return __init__


def _autocast(original: Callable[..., None], device_type: str) -> Callable[..., None]:
    translated = _method(original, device_type)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        translated(self, *args, **kwargs)
        named = args[0] if args else kwargs.get("device_type")
        setattr(self, _OUTSIDE, [] if named == "cuda" else None)

    return __init__


def _enter(
    original: Callable[..., Any], set_enabled: Callable[..., None], set_dtype: Callable[..., None]
) -> Callable[..., Any]:
    def __enter__(self: Any) -> Any:
        result = original(self)
        outside = getattr(self, _OUTSIDE, None)
        if outside is not None:
            outside.append((torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")))
            set_enabled("cuda", self._enabled)
            set_dtype("cuda", self.fast_dtype)
        return result

    return __enter__


def _exit(
    original: Callable[..., Any], set_enabled: Callable[..., None], set_dtype: Callable[..., None]
) -> Callable[..., Any]:
    def __exit__(self: Any, *error: Any) -> Any:
        outside = getattr(self, _OUTSIDE, None)
        if outside:
            enabled, dtype = outside.pop()
            set_enabled("cuda", enabled)
            set_dtype("cuda", dtype)
        return original(self, *error)

    return __exit__
