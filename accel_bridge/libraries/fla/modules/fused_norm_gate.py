"""Norms whose result is gated.

Legend: ... any leading dimensions, h hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from accel_bridge.kernels import compute_dtype

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def rms_norm_gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Result:
    """``norm(x + residual) * activation(g)``, in float32, rounded once at the end.

    :param x: [..., h].
    :param g: like ``x``.
    :param weight: [h], ones if None.
    :param bias: [h].
    :param activation: ``swish``, ``silu`` or ``sigmoid``.
    :param residual: like ``x``.
    :param prenorm: also return the sum that was normalised.
    :param residual_in_fp32: the dtype of that sum, where there is no ``residual``.
    :returns: like ``x``; with ``prenorm`` a pair.
    :raises ValueError: another activation.
    """
    return _gated(
        x, g, weight, bias, activation, residual, prenorm, residual_in_fp32, eps, centred=False
    )


def layer_norm_gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Result:
    """:func:`rms_norm_gated` with the mean taken off first."""
    return _gated(
        x, g, weight, bias, activation, residual, prenorm, residual_in_fp32, eps, centred=True
    )


def _gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    residual: torch.Tensor | None,
    prenorm: bool,
    residual_in_fp32: bool,
    eps: float,
    *,
    centred: bool,
) -> Result:
    _check(activation)
    dtype = compute_dtype(x)
    total = x.to(dtype)
    if residual is not None:
        total = total + residual.to(dtype)
    wide = total - total.mean(-1, keepdim=True) if centred else total
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        wide = wide * weight.to(dtype)
    if bias is not None:
        wide = wide + bias.to(dtype)
    gate = g.to(dtype)
    gate = torch.sigmoid(gate) if activation == "sigmoid" else functional.silu(gate)
    output = (wide * gate).to(x.dtype)
    if not prenorm:
        return output
    kept = residual.dtype if residual is not None else dtype if residual_in_fp32 else x.dtype
    return output, total.to(kept)


def _check(activation: str) -> None:
    if activation not in ("swish", "silu", "sigmoid"):
        raise ValueError(f"Unsupported activation: {activation}")


class _Gated(torch.nn.Module):
    """What both norms share."""

    _normalize: Callable[..., Result]

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        activation: str = "swish",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check(activation)
        self.hidden_size = hidden_size
        self.elementwise_affine = elementwise_affine
        self.eps = eps
        self.activation = activation
        self.weight: torch.nn.Parameter | None
        if elementwise_affine:
            self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        self.bias: torch.nn.Parameter | None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones, and zeros for the bias."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: torch.Tensor,
        g: torch.Tensor,
        residual: torch.Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Result:
        """[..., h], as ``x``; with ``prenorm`` also the sum with ``residual``."""
        return self._normalize(
            x,
            g,
            self.weight,
            self.bias,
            self.activation,
            residual,
            prenorm,
            residual_in_fp32,
            self.eps,
        )

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, activation={self.activation}"


class FusedRMSNormGated(_Gated):
    """:func:`rms_norm_gated` as a module.

    :param hidden_size: h.
    :param elementwise_affine: whether there is a weight.
    """

    _normalize = staticmethod(rms_norm_gated)


class FusedLayerNormGated(_Gated):
    """:func:`layer_norm_gated` as a module.

    :param hidden_size: h.
    :param elementwise_affine: whether there is a weight.
    :param bias: whether there is a bias beside it.
    """

    _normalize = staticmethod(layer_norm_gated)

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        bias: bool = False,
        activation: str = "swish",
        eps: float = 1e-5,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, elementwise_affine, eps, activation, device, dtype)
        if elementwise_affine and bias:
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))
