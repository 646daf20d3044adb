"""Contract ``bias_dropout_add``: the end of every transformer sub-layer.

Legend: ... any leading dimensions, h hidden size.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.kernels._contract import Contract


def bias_dropout_add_reference(
    input: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    dropout: float,
    training: bool,
) -> torch.Tensor:
    """``residual + dropout(input + bias)``, computed in the residual's dtype.

    :param input: [..., h], any float dtype.
    :param bias: [h], or broadcastable to the input, or None.
    :param residual: [..., h]; with fp32 residual connections float32 for a bfloat16 input.
    :param dropout: probability of zeroing an element; the others grow by ``1 / (1 - dropout)``.
    :param training: False means no dropout.
    :returns: [..., h] in the residual's dtype. No input is changed.
    """
    x = input.to(residual.dtype)
    if bias is not None:
        x = x + bias.to(residual.dtype)
    return residual + functional.dropout(x, p=dropout, training=training)


BIAS_DROPOUT_ADD = Contract(
    name="bias_dropout_add",
    reference=bias_dropout_add_reference,
    formula="residual + dropout(x + bias)",
    source="semantics of Megatron's fused_bias_dropout",
)
