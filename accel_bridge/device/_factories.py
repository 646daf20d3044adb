"""Functions that make tensors: their ``device`` and ``pin_memory`` arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.utils._device as _device_modes

from accel_bridge.device._context import Context
from accel_bridge.device._sides import Sides

#: Functions that share memory with what they are given.
VIEWS: Final = ("as_tensor", "asarray")
#: Functions without a ``device`` keyword, whose result is the host's memory.
HOST_VIEWS: Final = ("frombuffer", "from_numpy")
#: Functions with a ``device`` keyword, by the module that holds them.
FACTORIES: Final[dict[str, tuple[str, ...]]] = {
    "torch": (
        "arange",
        "as_tensor",
        "asarray",
        "bartlett_window",
        "blackman_window",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_quantized",
        "empty_strided",
        "eye",
        "from_file",
        "full",
        "full_like",
        "hamming_window",
        "hann_window",
        "kaiser_window",
        "linspace",
        "logspace",
        "normal",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "randperm",
        "range",
        "scalar_tensor",
        "sparse_bsc_tensor",
        "sparse_bsr_tensor",
        "sparse_compressed_tensor",
        "sparse_coo_tensor",
        "sparse_csc_tensor",
        "sparse_csr_tensor",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
        "zeros_like",
    ),
    "torch.fft": ("fftfreq", "rfftfreq"),
    "torch.nested": ("as_nested_tensor", "nested_tensor"),
}


def redirect_factories(context: Context) -> None:
    """Make ``device="cuda"`` mean the device in every factory."""
    # torch fills its table with its own functions on first use. That must happen now, or it would
    # hold ours forever.
    _device_modes._device_constructors()
    for owner, names in (
        (torch, FACTORIES["torch"]),
        (torch.fft, FACTORIES["torch.fft"]),
        (torch.nested, FACTORIES["torch.nested"]),
    ):
        for name in names:
            make = _view_of if name in VIEWS else _factory
            context.wrap(owner, name, functools.partial(make, context=context))
    sides = context.sides
    if sides is not None:
        for name in HOST_VIEWS:
            context.wrap(torch, name, functools.partial(_on_host, sides=sides))
    context.wrap(
        _device_modes.DeviceContext, "__init__", lambda original: _device_mode(original, context)
    )


def _factory(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate = context.devices.translate
    drop_pin_memory = not context.spec.pinned_memory
    if context.sides is not None:
        return _factory_on_a_side(original, translate, context.sides)

    def factory(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        if drop_pin_memory and "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        return original(*args, **kwargs)

    return factory


def _factory_on_a_side(
    original: Callable[..., Any], translate: Callable[[Any], Any], sides: Sides
) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else kwargs.get("data", kwargs.get("input"))
        pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if device is not None:
            target = sides.named(device)
            kwargs["device"] = translate(device)
        elif isinstance(data, torch.Tensor):
            target = sides.like(data)
        else:
            target = sides.default()
        result = original(*args, **kwargs)
        if target is None or target == "elsewhere" or "out" in kwargs:
            return result
        sides.mark(result, "pinned" if pinned and target == "host" else target)
        return result

    return factory


def _view_of(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """``as_tensor`` and ``asarray``, which share memory with what is given, unless it crosses."""
    translate, sides = context.devices.translate, context.sides
    if sides is None:
        return _factory(original, context)

    def view(data: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        is_tensor = isinstance(data, torch.Tensor)
        if device is None:
            target = sides.like(data) if is_tensor else sides.default()
        else:
            target = sides.named(device)
            kwargs["device"] = translate(device)
        result = original(data, **kwargs)
        if is_tensor:
            return result if device is None else sides.moved(data, result, target)
        # Lists have no memory to share.
        shared = result if target != "host" and not isinstance(data, (list, tuple)) else None
        return sides.moved(shared, result, target)

    return view


def _on_host(original: Callable[..., Any], sides: Sides) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = original(*args, **kwargs)
        sides.mark(result, "host")
        return result

    return make


def _device_mode(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """``with torch.device("cuda")`` and ``torch.set_default_device("cuda")``."""
    translate = context.devices.translate

    def __init__(self: Any, device: Any) -> None:
        original(self, translated := translate(device))
        if isinstance(translated, torch.device):
            self.device = translated  # the object itself, which tells a side

    return __init__
