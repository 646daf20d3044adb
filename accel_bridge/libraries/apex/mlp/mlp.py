"""A multi-layer perceptron: every layer is followed by the activation, the last one too.

Legend: ... rows, h_i size of layer i.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch.nn import functional

from accel_bridge.libraries.norms import in_autocast_dtype

_ACTIVATIONS: Final = ("none", "relu", "sigmoid")


def mlp_function(bias: int, activation: int, *args: torch.Tensor) -> torch.Tensor:
    """The perceptron of [..., h_0]; under autocast in its dtype.

    :param bias: whether there are biases.
    :param activation: 0 for none, 1 for ReLU, 2 for sigmoid.
    :param args: the input, weights [h_i+1, h_i] and, if there are, biases [h_i+1].
    """
    hidden, *parameters = (in_autocast_dtype(one) for one in args)
    layers = len(parameters) // 2 if bias else len(parameters)
    with torch.autocast(hidden.device.type, enabled=False):
        for number in range(layers):
            shift = parameters[layers + number] if bias else None
            hidden = functional.linear(hidden, parameters[number], shift)
            if activation:
                hidden = hidden.relu() if activation == 1 else hidden.sigmoid()
    return hidden


class MLP(torch.nn.Module):
    """A multi-layer perceptron with parameters ``weight_0``, ``bias_0`` and so on.

    :param mlp_sizes: h_0, h_1 and so on.
    :param bias: whether layers have one.
    :param activation: ``none``, ``relu`` or ``sigmoid``.
    :raises TypeError: another activation.
    """

    def __init__(
        self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu"
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise TypeError(f"activation must be one of {_ACTIVATIONS}, not {activation!r}")
        self.num_layers = len(mlp_sizes) - 1
        self.mlp_sizes = list(mlp_sizes)
        self.bias = 1 if bias else 0
        self.activation = _ACTIVATIONS.index(activation)
        self.weights: list[torch.nn.Parameter] = []
        self.biases: list[torch.nn.Parameter] = []
        for number, (size, wide) in enumerate(pairwise(mlp_sizes)):
            self.weights.append(torch.nn.Parameter(torch.empty(wide, size)))
            self.register_parameter(f"weight_{number}", self.weights[-1])
            if bias:
                self.biases.append(torch.nn.Parameter(torch.empty(wide)))
                self.register_parameter(f"bias_{number}", self.biases[-1])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal values of variance 2 / (h_i + h_i+1) for weights, 1 / h_i+1 for biases."""
        for weight in self.weights:
            torch.nn.init.normal_(weight, 0.0, (2.0 / sum(weight.shape)) ** 0.5)
        for bias in self.biases:
            torch.nn.init.normal_(bias, 0.0, (1.0 / len(bias)) ** 0.5)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., h_0] -> [..., h_n]."""
        return mlp_function(self.bias, self.activation, input, *self.weights, *self.biases)

    def extra_repr(self) -> str:
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"
