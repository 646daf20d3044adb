"""What the small cases of the emulator's operators are made of.

A case is a function of the device: on ``npu`` it calls the operator, on ``cpu`` it computes the
same in plain PyTorch. Both calls start from one seed, so that they get the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Case = Callable[[str], Any]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def rand(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(shape).to(dtype).to(device)


def leaf(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same, with a gradient."""
    return rand(device, *shape, dtype=dtype).requires_grad_()


def with_gradients(outputs: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs, and the inputs' gradients from random ones of the outputs."""
    results = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    generator = torch.Generator().manual_seed(1)
    given = [
        torch.randn(t.shape, generator=generator).to(t.dtype).to(t.device)
        for t in results
        if t.requires_grad
    ]
    found = torch.autograd.grad([t for t in results if t.requires_grad], inputs, given)
    return [*(t.detach() for t in results), *found]


def beside(
    on_npu: Callable[..., Any],
    on_cpu: Callable[..., Any],
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    gradients: bool = True,
) -> Case:
    """Two functions of normal numbers of these shapes, and of each its gradients.

    The CPU computes in float32, and what it has gradients for is rounded once.
    """

    def case(device: str) -> Any:
        inputs = [(leaf if gradients else rand)(device, *s, dtype=dtype) for s in shapes]
        found = on_npu(*inputs) if device == "npu" else on_cpu(*map(wide, inputs))
        found = [found] if isinstance(found, torch.Tensor) else list(found)
        if device == "cpu":
            found = [t.to(dtype) if t.requires_grad else t for t in found]
        return with_gradients(found, inputs) if gradients else found

    return case


def same(function: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> Case:
    """The same function of torch on both."""
    return beside(function, function, *shapes, **options)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Float32, in which the NPU's kernels compute half precisions."""
    return tensor.float() if tensor.is_floating_point() else tensor
