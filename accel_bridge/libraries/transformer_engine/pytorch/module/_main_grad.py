"""Weight gradients that are added in place to ``main_grad``.

Legend: ... any leading dimensions (tokens), k input size, m output size.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel


def main_grad_of(weight: Any) -> torch.Tensor | None:
    """The float32 sums of the weight's gradient; None where nobody has made any."""
    # Fully sharded data parallelism makes the sums when the backward pass needs them.
    if hasattr(weight, "__fsdp_param__"):
        sums: torch.Tensor = weight.get_main_grad()
        return sums
    return getattr(weight, "main_grad", None)


def accumulate(
    x: torch.Tensor, gradient: torch.Tensor, main_grad: torch.Tensor, overwrite: bool
) -> None:
    """``main_grad += gradient^T @ x``, or ``=`` with ``overwrite``.

    :param x: [..., k].
    :param gradient: [..., m].
    :param main_grad: [m, k], changed in place.
    """
    if overwrite:
        main_grad.zero_()
    if x.numel():
        kernel(WEIGHT_GRADIENT)(x, gradient, main_grad)
