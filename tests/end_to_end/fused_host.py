"""A plugin: the CPU as a backend that accumulates gradients as a GPU does.

Its kernels for weight gradients are the references, which is what the CPU leaves to Megatron: so
Megatron's own hooks, buffers and overlaps run with ``main_grad`` filled from inside, without a GPU.
The rotary embedding is the reference too, so the patches that cut it into documents run.
``INJECTED_ERROR=lost`` forgets every second token of the embedding's gradient, ``angles`` takes
sines for cosines, ``output`` loses the output layer's weight gradient.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from accel_bridge import Backend, hookimpl
from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import (
    EMBEDDING_GRADIENT,
    LINEAR_CROSS_ENTROPY,
    ROTARY,
    WEIGHT_GRADIENT,
    Kernels,
)


def weight_gradient(*tensors: Any, **options: Any) -> None:
    """The reference, under another name: a kernel that Megatron's patches use."""
    WEIGHT_GRADIENT.reference(*tensors, **options)


def embedding_gradient(indices: Any, grad_output: Any, main_grad: Any) -> None:
    """The reference, or one that loses tokens."""
    if os.environ.get("INJECTED_ERROR") == "lost":
        indices, grad_output = indices[:, ::2], grad_output[:, ::2]
    EMBEDDING_GRADIENT.reference(indices, grad_output, main_grad)


def rotary(t: Any, cos: Any, sin: Any, **options: Any) -> Any:
    """The reference, or one that takes sines for cosines."""
    if os.environ.get("INJECTED_ERROR") == "angles":
        cos = sin
    return ROTARY.reference(t, cos, sin, **options)


def linear_cross_entropy(*tensors: Any, main_grad: Any = None, **options: Any) -> Any:
    """The CPU's, or one that adds the weight's gradient to a tensor that nobody reads."""
    if os.environ.get("INJECTED_ERROR") == "output" and main_grad is not None:
        main_grad = main_grad.clone()
    return KERNELS[LINEAR_CROSS_ENTROPY](*tensors, main_grad=main_grad, **options)


class FusedHost(CpuBackend):
    """The CPU with gradient accumulation fusion."""

    name = "fused-host"
    priority = -1

    def kernels(self) -> Kernels:
        """The CPU's, and four more."""
        return (
            super()
            .kernels()
            .replaced(
                WEIGHT_GRADIENT.kernel(weight_gradient, "for a test"),
                EMBEDDING_GRADIENT.kernel(embedding_gradient, "for a test"),
                ROTARY.kernel(rotary, "for a test"),
                LINEAR_CROSS_ENTROPY.kernel(linear_cross_entropy, "for a test"),
            )
        )


@hookimpl
def accel_bridge_backends() -> Sequence[Backend]:
    """The one above."""
    return [FusedHost()]
