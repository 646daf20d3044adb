"""LayerNorm, of any hidden size here, on the active backend's kernel."""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.libraries.norms import layer_norm


class FastLayerNormFN:
    """LayerNorm over the last dimension; called as a ``torch.autograd.Function``.

    The kernel brings its own gradient. ``memory_efficient`` changes nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        epsilon: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        """:meth:`apply`, after a context that is not used."""
        return layer_norm(x, gamma, beta, gamma.shape, epsilon)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """x [..., h], gamma and beta [h], and epsilon -> as x, in gamma's dtype."""
        return cls.forward(None, *args, **kwargs)


class FastLayerNorm(torch.nn.Module):
    """LayerNorm over the last dimension, [h].

    :param hidden_size: h.
    :param eps: added to the variance.
    :param memory_efficient: accepted, and changes nothing.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        self.epsilon = eps
        self.memory_efficient = memory_efficient
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))
        self.bias = torch.nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [..., h]."""
        return layer_norm(x, self.weight, self.bias, self.weight.shape, self.epsilon)
