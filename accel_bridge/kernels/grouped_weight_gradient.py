"""Contract ``grouped_weight_gradient``: the weight gradients of several experts at once.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accel_bridge.kernels._contract import Contract
from accel_bridge.kernels.weight_gradient import weight_gradient_reference


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
