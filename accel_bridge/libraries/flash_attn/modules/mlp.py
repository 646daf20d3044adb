"""flash-attn's MLPs. Legend: ... any leading dimensions (rows)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..ops.activations import swiglu
from ..ops.fused_dense import FusedMLP

__all__ = ["FusedMLP", "GatedMlp", "Mlp"]

Activation = Callable[[torch.Tensor], torch.Tensor]


class Mlp(torch.nn.Module):
    """Two linear layers with an activation between; ``return_residual``: also the input."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.gelu,
        bias1: bool = True,
        bias2: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = in_features * 4 if hidden_features is None else hidden_features
        out = in_features if out_features is None else out_features
        self.return_residual = return_residual
        self.fc1 = torch.nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.activation = activation
        self.fc2 = torch.nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> Any:
        """[..., in] -> [..., out]."""
        y = self.fc2(self.activation(self.fc1(x)))
        return (y, x) if self.return_residual else y


class GatedMlp(torch.nn.Module):
    """``fc2(y * activation(gate))``, [y, gate] = fc1(x).

    :param hidden_features: default 8 / 3 of the input's; made a multiple of ``multiple_of``.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = -(-hidden // multiple_of) * multiple_of
        out = in_features if out_features is None else out_features
        self.return_residual = return_residual
        self.fc1 = torch.nn.Linear(in_features, 2 * hidden, bias=bias1, device=device, dtype=dtype)
        self.activation = activation
        self.fc2 = torch.nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> Any:
        """[..., in] -> [..., out]."""
        y, gate = self.fc1(x).chunk(2, dim=-1)
        fused = self.activation is functional.silu
        y = self.fc2(swiglu(gate, y) if fused else y * self.activation(gate))
        return (y, x) if self.return_residual else y
