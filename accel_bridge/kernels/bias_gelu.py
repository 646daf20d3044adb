"""Contract ``bias_gelu``: the activation of an MLP without a gate.

Legend: ... any leading dimensions, f feed-forward size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from accel_bridge.kernels._contract import Contract


class BiasGelu(Protocol):
    """Signature of the contract ``bias_gelu``; meaning at :func:`bias_gelu_reference`."""

    def __call__(self, input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor: ...


def bias_gelu_reference(input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``gelu(input + bias)`` by the tanh approximation.

    :param input: [..., f], any float dtype.
    :param bias: [f], in the input's dtype.
    :returns: [..., f] in the input's dtype.
    """
    return functional.gelu(input + bias, approximate="tanh")


BIAS_GELU = Contract(
    name="bias_gelu",
    signature=BiasGelu,
    reference=bias_gelu_reference,
    formula="gelu_tanh(x + bias)",
    source="Hendrycks and Gimpel 2016, arXiv:1606.08415; semantics of Megatron's bias_gelu_impl",
)
