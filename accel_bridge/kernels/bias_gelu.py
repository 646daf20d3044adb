"""Contract ``bias_gelu``: the activation of an MLP without a gate.

Legend: ... any leading dimensions, f feed-forward size.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.kernels._contract import Contract


def bias_gelu_reference(input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``gelu(input + bias)`` by the tanh approximation.

    :param input: [..., f], any float dtype.
    :param bias: [f], in the input's dtype.
    :returns: [..., f] in the input's dtype.
    """
    return functional.gelu(input + bias, approximate="tanh")


BIAS_GELU = Contract(
    name="bias_gelu",
    reference=bias_gelu_reference,
    formula="gelu_tanh(x + bias)",
    source="Hendrycks and Gimpel 2016, arXiv:1606.08415; semantics of Megatron's bias_gelu_impl",
)
