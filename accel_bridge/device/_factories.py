"""Functions that make tensors: their ``device`` and ``pin_memory`` arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.jit._builtins as _script_builtins
import torch.utils._device as _device_modes

from accel_bridge.device._context import Context

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
    # torch fills both tables with its own functions on first use. That must happen now, or
    # they would hold ours forever.
    _device_modes._device_constructors()
    script_names = _script_builtins._get_builtin_table()
    for owner, names in (
        (torch, FACTORIES["torch"]),
        (torch.fft, FACTORIES["torch.fft"]),
        (torch.nested, FACTORIES["torch.nested"]),
    ):
        for name in names:
            original = getattr(owner, name, None)
            wrapper = context.wrap(owner, name, lambda function: _factory(function, context))
            # TorchScript knows its builtins by identity; without this it would try to compile
            # the wrapper.
            operator = script_names.get(id(original))
            if wrapper is not None and operator is not None:
                context.journal.set_item(script_names, id(wrapper), operator)
    context.wrap(
        _device_modes.DeviceContext, "__init__", lambda original: _device_mode(original, context)
    )


def _factory(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    translate = context.devices.translate
    drop_pin_memory = not context.spec.pinned_memory

    def factory(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        if drop_pin_memory and "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        return original(*args, **kwargs)

    return factory


def _device_mode(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """``with torch.device("cuda")`` and ``torch.set_default_device("cuda")``."""
    translate = context.devices.translate

    def __init__(self: Any, device: Any) -> None:
        original(self, translate(device))

    return __init__
