"""AdamW, and weight gradients added to float32 sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from accel_bridge.backends.cuda.kernels._choice import LARGE, missing
from accel_bridge.kernels import ADAMW, WEIGHT_GRADIENT, AdamWOptions

_HALF: Final = (torch.float16, torch.bfloat16)
#: A GEMM with its sum in another precision; torch 2.8 has it.
_ADDMM: Final = getattr(torch.ops.aten.addmm, "dtype_out", None)


@torch.no_grad()
def adamw(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    options: AdamWOptions,
) -> None:
    """The contract ``adamw``; one launch of Triton's where that saves more than it costs."""
    lists = (parameters, gradients, first_moments, second_moments)
    if not parameters:
        return
    if _is_large(parameters) and missing() is None:
        from accel_bridge.backends.cuda.kernels import adamw as by_triton

        if by_triton.adamw(lists, options):
            return
    # The operator needs a step for each tensor and only reads it: one tensor serves all.
    step = torch.full((), float(options.step), device=parameters[0].device)
    torch._fused_adamw_(
        list(parameters),
        list(gradients),
        list(first_moments),
        list(second_moments),
        [],
        [step] * len(parameters),
        lr=options.lr,
        beta1=options.betas[0],
        beta2=options.betas[1],
        weight_decay=options.weight_decay,
        eps=options.eps,
        amsgrad=False,
        maximize=False,
    )


def _is_large(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether memory traffic dominates; a graph that is captured keeps no addresses here."""
    if not parameters[0].is_cuda or torch.cuda.is_current_stream_capturing():
        return False
    return sum(map(torch.Tensor.numel, parameters)) >= LARGE


def weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    main_grad: torch.Tensor,
    *,
    accumulate: bool = True,
) -> None:
    """The contract ``weight_gradient``: the GEMM itself adds to ``main_grad``."""
    if torch.is_grad_enabled():  # a backward pass has switched it off, which takes 3 us
        with torch.no_grad():
            weight_gradient(input, grad_output, main_grad, accumulate=accumulate)
        return
    x, gradient = input, grad_output
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    if gradient.dim() != 2:
        gradient = gradient.reshape(-1, gradient.shape[-1])
    gradient = gradient.t()
    if main_grad.dtype == x.dtype:
        main_grad.addmm_(gradient, x, beta=int(accumulate))
        return
    assert _ADDMM is not None
    _ADDMM(main_grad, gradient, x, torch.float32, beta=int(accumulate), out=main_grad)


def _weight_gradient_supports(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    main_grad: torch.Tensor,
    *,
    accumulate: bool = True,
) -> str | None:
    if input.dtype != grad_output.dtype:
        return f"input is {input.dtype}, its gradient {grad_output.dtype}"
    if main_grad.dtype == input.dtype:
        return None
    if main_grad.dtype != torch.float32 or input.dtype not in _HALF:
        return f"GEMMs of {input.dtype} are not added to {main_grad.dtype}"
    if _ADDMM is None:
        return "this torch has no addmm with an output dtype (2.8 has)"
    return None


KERNELS: Final = (
    ADAMW.kernel(
        adamw,
        "all tensors in one launch, at the speed of the memory; torch's operator for small ones",
        source="torch._fused_adamw_ and accel_bridge",
    ),
    WEIGHT_GRADIENT.kernel(
        weight_gradient,
        "cuBLAS adds the half-precision GEMM to the float32 sum itself",
        _weight_gradient_supports,
        source="torch.addmm with out_dtype",
    ),
)
