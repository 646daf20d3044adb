"""Contracts ``swiglu``, ``geglu`` and ``bias_gelu``: the activations of an MLP.

Legend: ... any leading dimensions, f feed-forward size.
"""

from __future__ import annotations

from typing import Literal

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


def swiglu_reference(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(a) * b`` where ``a, b`` are the halves of ``input + bias``.

    :param input: [..., 2 f], any float dtype; the first half is the gate.
    :param bias: [2 f] or None, in the input's dtype.
    :returns: [..., f] in the input's dtype.
    """
    gate, linear = (input if bias is None else input + bias).chunk(2, dim=-1)
    return functional.silu(gate) * linear


def geglu_reference(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: Literal["none", "tanh"] = "tanh",
) -> torch.Tensor:
    """``gelu(a) * b`` where ``a, b`` are the halves of ``input + bias``.

    :param input: [..., 2 f], any float dtype; the first half is the gate.
    :param bias: [2 f] or None, in the input's dtype.
    :param approximate: ``tanh`` (Megatron's fused GEGLU) or ``none`` (error function).
    :returns: [..., f] in the input's dtype.
    """
    gate, linear = (input if bias is None else input + bias).chunk(2, dim=-1)
    return functional.gelu(gate, approximate=approximate) * linear


SWIGLU = Contract(
    name="swiglu",
    reference=swiglu_reference,
    formula="silu(a) * b, [a, b] = x + bias",
    source="Shazeer 2020, arXiv:2002.05202; semantics of Megatron's bias_swiglu",
)
GEGLU = Contract(
    name="geglu",
    reference=geglu_reference,
    formula="gelu(a) * b, [a, b] = x + bias",
    source="Shazeer 2020, arXiv:2002.05202; semantics of Megatron's bias_geglu",
)
