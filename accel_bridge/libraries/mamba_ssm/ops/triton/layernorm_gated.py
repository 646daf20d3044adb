"""Norms of groups of channels, with a gate before or after them.

Legend: ... any leading dimensions, h hidden size.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.kernels import compute_dtype


def layernorm_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> torch.Tensor:
    """``norm(x) * silu(z)``, or ``norm(x * silu(z))``, in float32, rounded once at the end.

    :param x: [..., h].
    :param weight: [h].
    :param bias: [h].
    :param z: like ``x``; no gate without it.
    :param eps: added to the variance, or to the mean square.
    :param group_size: channels that are normalised together; default h.
    :param norm_before_gate: the first formula, else the second.
    :param is_rms_norm: no mean is taken off.
    """
    dtype = compute_dtype(x)
    wide = x.to(dtype)
    gate = None if z is None else functional.silu(z.to(dtype))
    if gate is not None and not norm_before_gate:
        wide = wide * gate
    groups: torch.Tensor = wide.unflatten(-1, (-1, group_size or x.shape[-1]))
    if not is_rms_norm:
        groups = groups - groups.mean(-1, keepdim=True)
    normal = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    output: torch.Tensor = normal.flatten(-2) * weight.to(dtype)
    if bias is not None:
        output = output + bias.to(dtype)
    if gate is not None and norm_before_gate:
        output = output * gate
    return output.to(x.dtype)


def rmsnorm_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> torch.Tensor:
    """:func:`layernorm_fn` with the root of the mean square."""
    return layernorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate, True)


class _Gated(torch.nn.Module):
    """What both norms share."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.bias: torch.nn.Parameter | None
        self._add_bias()
        self.group_size = group_size
        self.norm_before_gate = norm_before_gate
        self.reset_parameters()

    def _add_bias(self) -> None:
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        """Ones, and zeros for the bias."""
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)


class LayerNorm(_Gated):
    """A layer norm of groups of channels, with a gate.

    :param hidden_size: h.
    :param group_size: channels that are normalised together; default h.
    :param norm_before_gate: ``norm(x) * silu(z)``, else ``norm(x * silu(z))``.
    """

    def _add_bias(self) -> None:
        self.bias = torch.nn.Parameter(torch.empty_like(self.weight))

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """[..., h], as ``x`` and ``z``."""
        return layernorm_fn(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate
        )


class RMSNorm(_Gated):
    """A norm of groups of channels by their root mean square, with a gate.

    :param hidden_size: h.
    :param group_size: channels that are normalised together; default h.
    :param norm_before_gate: ``norm(x) * silu(z)``, else ``norm(x * silu(z))``.
    """

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """[..., h], as ``x`` and ``z``."""
        return rmsnorm_fn(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate
        )
