"""Norms with Apex's dtypes, on the ``layer_norm`` and ``rms_norm`` contracts.

Legend: ... any leading dimensions; the normalized dimensions are the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from accel_bridge.kernels import LAYER_NORM, RMS_NORM
from accel_bridge.kernels.active import kernel


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: Sequence[int],
    eps: float,
) -> torch.Tensor:
    """LayerNorm over the last ``len(shape)`` dimensions.

    :param input: [..., *shape].
    :param weight: [*shape], or None for ones.
    :param bias: [*shape], or None for zeros.
    :returns: as ``input``, in the dtype of ``weight``; under autocast in its dtype.
    """
    input = in_autocast_dtype(input)
    weight, bias = (None if one is None else in_autocast_dtype(one) for one in (weight, bias))
    x, gamma, beta = _flat(input, weight, bias, shape)
    return kernel(LAYER_NORM)(x, gamma, beta, eps=eps).to(_dtype(input, weight)).view(input.shape)


def rms_norm(
    input: torch.Tensor, weight: torch.Tensor | None, shape: Sequence[int], eps: float
) -> torch.Tensor:
    """RMSNorm, as :func:`layer_norm`."""
    input = in_autocast_dtype(input)
    weight = None if weight is None else in_autocast_dtype(weight)
    x, gamma, _ = _flat(input, weight, None, shape)
    return kernel(RMS_NORM)(x, gamma, eps=eps).to(_dtype(input, weight)).view(input.shape)


def in_autocast_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as Apex's functions cast it under autocast, parameters too; float64 stays."""
    device = tensor.device.type
    if device == "meta" or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _dtype(input: torch.Tensor, weight: torch.Tensor | None) -> torch.dtype:
    return input.dtype if weight is None else weight.dtype


def _flat(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Input and parameters with one normalized dimension; float32 where their dtypes differ."""
    size = math.prod(shape)
    x = input if len(shape) == 1 else input.reshape(*input.shape[: -len(shape)], size)
    if weight is None:
        weight = torch.ones(size, dtype=input.dtype, device=input.device)
    if weight.dtype != input.dtype:
        x, weight = x.float(), weight.float()
        bias = None if bias is None else bias.float()
    return x, weight.reshape(size), None if bias is None else bias.reshape(size)
