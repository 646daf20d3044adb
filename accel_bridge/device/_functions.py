"""Functions of torch.nn.functional that differ on the device from what PyTorch documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from accel_bridge.device._context import Context, Part


def functions(**own: Callable[..., torch.Tensor]) -> Part:
    """A part that sends tensors on the device through ``own`` functions, by their names."""

    def redirect(context: Context) -> None:
        for name, function in own.items():
            context.wrap(functional, name, _on_device(function, context.spec.type))

    return redirect


def _on_device(
    own: Callable[..., torch.Tensor], device_type: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            chosen = own if input.device.type == device_type else original
            return chosen(input, *args, **kwargs)

        return call

    return make
