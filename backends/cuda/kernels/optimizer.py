"""AdamW, and weight gradients added to float32 sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from accel_bridge.kernels import Kernel

_HALF: Final = (torch.float16, torch.bfloat16)


@torch.no_grad()
def adamw(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """The contract ``adamw``: all tensors in a few launches."""
    if not parameters:
        return
    # The operator wants a step for each tensor and only reads them: one serves all.
    steps = torch.full((), float(step), device=parameters[0].device)
    torch._fused_adamw_(
        list(parameters),
        list(gradients),
        list(first_moments),
        list(second_moments),
        [],
        [steps] * len(parameters),
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


@torch.no_grad()
def weight_gradient(
    input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """The contract ``weight_gradient``: the matrix product itself adds to ``main_grad``."""
    x = input.reshape(-1, input.shape[-1])
    gradient = grad_output.reshape(-1, grad_output.shape[-1]).t()
    if main_grad.dtype == x.dtype:
        main_grad.addmm_(gradient, x)
        return
    torch.ops.aten.addmm.dtype_out(main_grad, gradient, x, torch.float32, out=main_grad)


def _weight_gradient_supports(
    input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> str | None:
    if input.dtype != grad_output.dtype:
        return f"input is {input.dtype}, its gradient {grad_output.dtype}"
    if main_grad.dtype == input.dtype:
        return None
    if main_grad.dtype != torch.float32 or input.dtype not in _HALF:
        return f"products of {input.dtype} are not added to {main_grad.dtype}"
    if not hasattr(torch.ops.aten.addmm, "dtype_out"):
        return "this torch has no addmm with an output dtype (2.8 has)"
    return None


ADAMW: Final = Kernel("adamw", adamw, "all tensors in a few launches", source="torch._fused_adamw_")
WEIGHT_GRADIENT: Final = Kernel(
    "weight_gradient",
    weight_gradient,
    "cuBLAS adds the half-precision product to the float32 sum itself",
    _weight_gradient_supports,
    source="torch.addmm with out_dtype",
)
