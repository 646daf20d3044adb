"""One GEMM per expert on ``npu_grouped_matmul``, with its gradients, and their sums.

Legend: t tokens sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from accel_bridge.backends.ascend import limits
from accel_bridge.kernels import GROUPED_MATMUL, GROUPED_WEIGHT_GRADIENT

#: group_type: which axis of x is split into groups.
_TOKENS: Final = 0
_INNER: Final = 2


def _gemms(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor, axis: int) -> torch.Tensor:
    """All groups' GEMMs in one tensor (split_item 3)."""
    output: torch.Tensor = torch.ops.npu.npu_grouped_matmul(
        [left], [right], group_list=ends, split_item=3, group_type=axis, group_list_type=0
    )[0]
    return output


class _GroupedMatmul(torch.autograd.Function):
    """torch_npu registers no gradient for the operator."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        ends = counts.cumsum(0)
        ctx.save_for_backward(input, weight, counts, ends)
        return _gemms(input, weight, ends, _TOKENS)

    @staticmethod
    def backward(
        ctx: Any, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        gradient = gradients[0].contiguous()
        input, weight, counts, ends = ctx.saved_tensors
        grad_input = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_input = _gemms(gradient, weight.transpose(1, 2), ends, _TOKENS)
        if ctx.needs_input_grad[1]:
            grad_weight = _gemms(input.t(), gradient, ends, _INNER)
            # No sequence defines the result for an expert without tokens.
            grad_weight = grad_weight.masked_fill((counts == 0)[:, None, None], 0.0)
        return grad_input, grad_weight, None


def grouped_matmul(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> torch.Tensor:
    """The contract ``grouped_matmul``."""
    counts = tokens_per_expert.to(device=input.device, dtype=torch.int64)
    output: torch.Tensor = _GroupedMatmul.apply(input, weight, counts)
    return output


def _supports(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> str | None:
    rules = limits.here()
    if found := rules.dtype_objection("npu_grouped_matmul", input, weight):
        return found
    if not input.shape[0]:
        return "npu_grouped_matmul: an input without tokens is not supported"
    sizes = (("inner", size) for size in weight.shape[1:])
    return rules.objection("npu_grouped_matmul", ("groups", weight.shape[0]), *sizes)


@torch.no_grad()
def grouped_weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    accumulate: bool = True,
) -> None:
    """The contract ``grouped_weight_gradient``."""
    count, size = len(splits), grad_output.shape[1] * input.shape[1]
    views = [main_grad[place : place + size] for place in places]
    if not accumulate:
        torch._foreach_zero_(views)
    if not input.shape[0]:
        return
    ends = torch.tensor(splits, device="cpu").cumsum(0).to(input.device)
    # Megatron's buffers hold parameters in reverse order; the operator writes one after the other.
    in_order = all(place == places[0] + i * size for i, place in enumerate(places))
    sums = main_grad[places[0] :][: count * size] if in_order else main_grad.new_zeros(count * size)
    torch.ops.npu.npu_grouped_matmul_add_(sums.view(-1, input.shape[1]), grad_output, input, ends)
    if not in_order:
        torch._foreach_add_(views, list(sums.view(count, size)))


def _supports_sums(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    accumulate: bool = True,
) -> str | None:
    name = "npu_grouped_matmul_add_"
    if grad_output.dtype != input.dtype:
        return f"{name}: one dtype on both sides, not {input.dtype}, {grad_output.dtype}"
    if not (input.is_contiguous() and grad_output.is_contiguous()):
        return f"{name}: contiguous operands"
    return limits.here().objection(
        name,
        ("sum_dtype", main_grad.dtype),
        ("dtype", input.dtype),
        ("groups", len(splits)),
        ("inner", input.shape[1]),
        ("inner", grad_output.shape[1]),
    )


KERNELS: Final = (
    GROUPED_WEIGHT_GRADIENT.kernel(
        grouped_weight_gradient,
        "every expert in one launch, added in float32",
        _supports_sums,
        "torch_npu.npu_grouped_matmul_add_",
    ),
    GROUPED_MATMUL.kernel(
        grouped_matmul, "every expert in one launch", _supports, "torch_npu.npu_grouped_matmul"
    ),
)
