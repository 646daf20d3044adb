"""Contracts ``grouped_matmul`` and ``grouped_weight_gradient``: one GEMM per expert, tokens sorted
by expert, and its gradient for the weights.

Legend: t tokens, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from accel_bridge.kernels._contract import Contract
from accel_bridge.kernels.weight_gradient import weight_gradient_reference


def grouped_matmul_reference(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> torch.Tensor:
    """``output[rows of expert i] = input[rows of expert i] @ weight[i]``.

    :param input: [t, k], any float dtype, rows sorted by expert.
    :param weight: [e, k, m], in the input's dtype; a transposed view is fine.
    :param tokens_per_expert: [e], integer, on any device; sums to t; zeros are allowed.
    :returns: [t, m] in the input's dtype.
    :raises ValueError: counts that do not sum to t.
    """
    counts = cast(list[int], tokens_per_expert.tolist())
    if sum(counts) != input.shape[0] or len(counts) != weight.shape[0]:
        raise ValueError(f"counts {counts} for {input.shape[0]} rows, {weight.shape[0]} experts")
    rows = torch.split(input, counts)
    return torch.cat([part @ weight[expert] for expert, part in enumerate(rows)])


GROUPED_MATMUL = Contract(
    name="grouped_matmul",
    reference=grouped_matmul_reference,
    formula="y[group i] = x[group i] @ W[i]",
    source="Gale et al. 2022, arXiv:2211.15841; semantics of grouped_gemm.ops.gmm",
)


@torch.no_grad()
def grouped_weight_gradient_reference(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
) -> None:
    """``main_grad_i += grad_output_i^T @ input_i`` for the rows i of each expert, in place.

    Products and sums have main_grad's precision, as in ``weight_gradient``.

    :param input: [t, k], any float dtype.
    :param grad_output: [t, m], any float dtype.
    :param splits: e numbers of rows, on the host.
    :param main_grad: [n], contiguous; float32 as a rule. Experts' sums [m, k] lie in it in any
        order, as in a buffer of gradients.
    :param places: e numbers: where in ``main_grad`` each expert's sums begin.
    """
    m, k = grad_output.shape[1], input.shape[1]
    rows = zip(input.split(list(splits)), grad_output.split(list(splits)), places, strict=True)
    for x, gradient, place in rows:
        weight_gradient_reference(x, gradient, main_grad[place : place + m * k].view(m, k))


GROUPED_WEIGHT_GRADIENT = Contract(
    name="grouped_weight_gradient",
    reference=grouped_weight_gradient_reference,
    formula="main_grad_i += grad_output_i^T @ input_i",
    source="semantics of Transformer Engine's GroupedLinear with fused accumulation",
)
