"""Shim for the functions under Apex's norms: forward and backward apart.

What was saved is the input, or with ``memory_efficient`` the output. Statistics are float32, one
for each row. Outputs have the weight's dtype, without one the input's.

Legend: ... any leading dimensions (rows); shape is that of the normalized, last dimensions.
Source: apex/csrc/layer_norm_cuda.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Tensors = tuple[torch.Tensor, ...]


def forward(input: torch.Tensor, normalized_shape: Sequence[int], eps: float) -> Tensors:
    """LayerNorm without parameters: output, mean and inverse deviation."""
    return _layer_norm(input, normalized_shape, None, None, eps)


def forward_affine(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    gamma: torch.Tensor,
    beta: torch.Tensor,
    eps: float,
) -> Tensors:
    """LayerNorm: output, mean and inverse deviation."""
    return _layer_norm(input, normalized_shape, gamma, beta, eps)


#: The real library tells them apart: its kernels are compiled for one dtype, and for two.
forward_affine_mixed_dtypes = forward_affine


def rms_forward(input: torch.Tensor, normalized_shape: Sequence[int], eps: float) -> Tensors:
    """RMSNorm without a weight: output and inverse root mean square."""
    return _rms_norm(input, normalized_shape, None, eps)


def rms_forward_affine(
    input: torch.Tensor, normalized_shape: Sequence[int], gamma: torch.Tensor, eps: float
) -> Tensors:
    """RMSNorm: output and inverse root mean square."""
    return _rms_norm(input, normalized_shape, gamma, eps)


rms_forward_affine_mixed_dtypes = rms_forward_affine


def backward(
    dout: torch.Tensor,
    mean: torch.Tensor | None,
    invvar: torch.Tensor,
    input_or_output: torch.Tensor,
    normalized_shape: Sequence[int],
    eps: float,
    memory_efficient: bool,
) -> torch.Tensor:
    """Gradient of the input of :func:`forward`."""
    return _gradients(
        dout, mean, invvar, input_or_output, normalized_shape, None, None, memory_efficient, True
    )[0]


def backward_affine(
    dout: torch.Tensor,
    mean: torch.Tensor | None,
    invvar: torch.Tensor,
    input_or_output: torch.Tensor,
    normalized_shape: Sequence[int],
    gamma: torch.Tensor,
    beta: torch.Tensor,
    eps: float,
    memory_efficient: bool,
) -> Tensors:
    """Gradients of input, weight and bias of :func:`forward_affine`."""
    return _gradients(
        dout, mean, invvar, input_or_output, normalized_shape, gamma, beta, memory_efficient, True
    )


def rms_backward(
    dout: torch.Tensor,
    invvar: torch.Tensor,
    input_or_output: torch.Tensor,
    normalized_shape: Sequence[int],
    eps: float,
    memory_efficient: bool,
) -> torch.Tensor:
    """Gradient of the input of :func:`rms_forward`."""
    return _gradients(
        dout, None, invvar, input_or_output, normalized_shape, None, None, memory_efficient, False
    )[0]


def rms_backward_affine(
    dout: torch.Tensor,
    invvar: torch.Tensor,
    input_or_output: torch.Tensor,
    normalized_shape: Sequence[int],
    gamma: torch.Tensor,
    eps: float,
    memory_efficient: bool,
) -> Tensors:
    """Gradients of input and weight of :func:`rms_forward_affine`."""
    return _gradients(
        dout, None, invvar, input_or_output, normalized_shape, gamma, None, memory_efficient, False
    )


def _rows(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return tensor.reshape(-1, math.prod(shape)).float()


def _layer_norm(
    input: torch.Tensor,
    shape: Sequence[int],
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    eps: float,
) -> Tensors:
    x = _rows(input, shape)
    mean = x.mean(-1, keepdim=True)
    centered = x - mean
    inverse = torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
    output = centered * inverse
    if gamma is not None and beta is not None:
        output = output * gamma.reshape(-1).float() + beta.reshape(-1).float()
    output = output.to(input.dtype if gamma is None else gamma.dtype)
    return output.view(input.shape), mean.view(-1), inverse.view(-1)


def _rms_norm(
    input: torch.Tensor, shape: Sequence[int], gamma: torch.Tensor | None, eps: float
) -> Tensors:
    x = _rows(input, shape)
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    output = x * inverse
    if gamma is not None:
        output = output * gamma.reshape(-1).float()
    output = output.to(input.dtype if gamma is None else gamma.dtype)
    return output.view(input.shape), inverse.view(-1)


def _gradients(
    dout: torch.Tensor,
    mean: torch.Tensor | None,
    invvar: torch.Tensor,
    saved: torch.Tensor,
    shape: Sequence[int],
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    from_output: bool,
    centered: bool,
) -> Tensors:
    """Gradients of the input and of the parameters that there are."""
    gradient, value, inverse = _rows(dout, shape), _rows(saved, shape), invvar.view(-1, 1)
    weight = None if gamma is None else gamma.reshape(-1).float()
    if not from_output:
        normal = (value if mean is None else value - mean.view(-1, 1)) * inverse
    else:
        normal = value if beta is None else value - beta.reshape(-1).float()
        normal = normal if weight is None else normal / weight
    inner = gradient if weight is None else gradient * weight
    slope = inner - normal * (inner * normal).mean(-1, keepdim=True)
    if centered:
        slope = slope - inner.mean(-1, keepdim=True)
    results = [(slope * inverse).to(saved.dtype).view(saved.shape)]
    if gamma is not None:
        results.append((gradient * normal).sum(0).to(gamma.dtype).view(gamma.shape))
    if beta is not None:
        results.append(gradient.sum(0).to(beta.dtype).view(beta.shape))
    return tuple(results)
