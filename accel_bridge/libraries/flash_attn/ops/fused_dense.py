"""flash-attn's linear layers. Those that split their weights over ranks are absent.

Legend: ... any leading dimensions (rows).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn import functional

from accel_bridge.errors import BridgeError

from .activations import gelu_fwd, sqrelu_fwd

Tensor = torch.Tensor

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu_approx": gelu_fwd,
    "relu": functional.relu,
    "sqrelu": sqrelu_fwd,
}


def fused_dense_func(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    return_residual: bool = False,
    process_group: dist.ProcessGroup | None = None,
    sequence_parallel: bool = True,
) -> Any:
    """``x @ weight.T + bias``, [..., out]; with ``return_residual`` also x.

    :raises BridgeError: a process group.
    """
    _alone(process_group)
    product = functional.linear(x, weight, bias)
    return (product, x) if return_residual else product


def fused_mlp_func(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: str = "gelu_approx",
    save_pre_act: bool = True,
    return_residual: bool = False,
    checkpoint_lvl: int = 0,
    heuristic: int = 0,
    process_group: dist.ProcessGroup | None = None,
    sequence_parallel: bool = True,
) -> Any:
    """Two linear layers with an activation between; with ``return_residual`` also x.

    :param activation: ``gelu_approx``, ``relu`` or ``sqrelu``.
    :param save_pre_act: of the real library's memory, as ``checkpoint_lvl`` and ``heuristic``.
    :raises BridgeError: a process group.
    """
    _alone(process_group)
    hidden = _ACTIVATIONS[activation](functional.linear(x, weight1, bias1))
    product = functional.linear(hidden, weight2, bias2)
    return (product, x) if return_residual else product


def _alone(process_group: dist.ProcessGroup | None) -> None:
    if process_group is not None:
        raise BridgeError(
            "flash_attn.ops.fused_dense does not split weights over ranks here.",
            evidence="a process_group was given",
            next="use Megatron's ColumnParallelLinear and RowParallelLinear",
        )


class FusedDense(torch.nn.Linear):
    """A linear layer that may return its input too."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x: Tensor, process_group: dist.ProcessGroup | None = None) -> Any:
        """As :func:`fused_dense_func`."""
        return fused_dense_func(x, self.weight, self.bias, self.return_residual, process_group)


class FusedMLP(torch.nn.Module):
    """:func:`fused_mlp_func` with its layers ``fc1`` and ``fc2``."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        bias1: bool = True,
        bias2: bool = True,
        activation: str = "gelu_approx",
        return_residual: bool = False,
        checkpoint_lvl: int = 0,
        heuristic: str | int = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        assert checkpoint_lvl in (0, 1, 2)
        assert activation in _ACTIVATIONS
        super().__init__()
        hidden = hidden_features or in_features * 4
        form: Any = {"device": device, "dtype": dtype}
        self.activation = activation
        self.return_residual = return_residual
        self.checkpoint_lvl = checkpoint_lvl
        self.heuristic = heuristic if activation != "sqrelu" else -1
        self.fc1 = torch.nn.Linear(in_features, hidden, bias=bias1, **form)
        self.fc2 = torch.nn.Linear(hidden, out_features or in_features, bias=bias2, **form)

    def forward(self, x: Tensor, process_group: dist.ProcessGroup | None = None) -> Any:
        """[..., in] -> [..., out]."""
        return fused_mlp_func(
            x,
            self.fc1.weight,
            self.fc2.weight,
            self.fc1.bias,
            self.fc2.bias,
            self.activation,
            return_residual=self.return_residual,
            process_group=process_group,
        )
