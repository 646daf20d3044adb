"""Norms, cross-entropy, a perceptron and batch norm, on the active backend's kernels.

``memory_efficient`` saves the output instead of the input in the real library; here it changes
nothing. Outputs have the weight's dtype, also where the real functions of one dtype only would
refuse another's input.

Legend: ... any leading dimensions (rows); the normalized dimensions, [*shape], are the last ones;
h_i size of a perceptron's layer i.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import CROSS_ENTROPY, LAYER_NORM, RMS_NORM
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


Shape = int | Sequence[int]


def _sizes(shape: Shape) -> torch.Size:
    return torch.Size((int(shape),) if isinstance(shape, Integral) else shape)  # type: ignore[arg-type]


class _Function(ABC):
    """Called as a ``torch.autograd.Function``, and is none: the kernel brings its own gradient."""

    @staticmethod
    @abstractmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """:meth:`apply`, after a context that is not used."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """:meth:`forward` without the context."""
        return cls.forward(None, *args, **kwargs)


class FusedLayerNormAffineFunction(_Function):
    """LayerNorm with weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        """input [..., *shape], weight and bias [*shape], shape and eps -> as input."""
        return layer_norm(input, weight, bias, _sizes(normalized_shape), eps)


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """The same for an input of another dtype than the weight's."""


class FusedRMSNormAffineFunction(_Function):
    """RMSNorm with a weight."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        """input [..., *shape], weight [*shape], shape and eps -> as input."""
        return rms_norm(input, weight, _sizes(normalized_shape), eps)


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    """The same for an input of another dtype than the weight's."""


def fused_layer_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """LayerNorm of input [..., *shape] with weight and bias [*shape]."""
    return layer_norm(input, weight, bias, _sizes(normalized_shape), eps)


def fused_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """LayerNorm of input [..., *shape] without weight and bias."""
    return layer_norm(input, None, None, _sizes(normalized_shape), eps)


def fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """RMSNorm of input [..., *shape] with weight [*shape]."""
    return rms_norm(input, weight, _sizes(normalized_shape), eps)


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """RMSNorm of input [..., *shape] without a weight."""
    return rms_norm(input, None, _sizes(normalized_shape), eps)


mixed_dtype_fused_layer_norm_affine = fused_layer_norm_affine
mixed_dtype_fused_rms_norm_affine = fused_rms_norm_affine


class _FusedNorm(torch.nn.Module):
    """A norm; parameters, options and defaults of ``torch.nn.LayerNorm``.

    :param normalized_shape: sizes of the last dimensions.
    :param eps: added to the variance.
    :param elementwise_affine: with parameters.
    :param memory_efficient: accepted; see the module's documentation.
    """

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None

    #: Parameters, and what they begin with.
    _initial: ClassVar[Mapping[str, float]]

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in self._initial:
            parameter = None
            if elementwise_affine:
                parameter = torch.nn.Parameter(torch.empty(*self.normalized_shape))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        for name, parameter in self.named_parameters():
            torch.nn.init.constant_(parameter, self._initial[name])

    def extra_repr(self) -> str:
        return f"{tuple(self.normalized_shape)}, eps={self.eps}, affine={self.elementwise_affine}"


class FusedLayerNorm(_FusedNorm):
    """LayerNorm."""

    _initial: ClassVar = {"weight": 1.0, "bias": 0.0}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise input [..., *shape]."""
        return layer_norm(input, self.weight, self.bias, self.normalized_shape, self.eps)


class FusedRMSNorm(_FusedNorm):
    """RMSNorm."""

    _initial: ClassVar = {"weight": 1.0}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise input [..., *shape]."""
        return rms_norm(input, self.weight, self.normalized_shape, self.eps)


class _Mixed(_FusedNorm):
    """A norm whose output has the parameters' dtype; never without parameters."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        if not kwargs.pop("elementwise_affine", True):
            name = type(self).__name__
            raise RuntimeError(f"{name} does not support elementwise_affine = False")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_Mixed, FusedLayerNorm):
    """LayerNorm in the parameters' dtype."""


class MixedFusedRMSNorm(_Mixed, FusedRMSNorm):
    """RMSNorm in the weight's dtype."""


class FastLayerNormFN(_Function):
    """LayerNorm over the last dimension. ``memory_efficient`` changes nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        epsilon: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        """x [..., h], gamma and beta [h], and epsilon -> as x, in gamma's dtype."""
        return layer_norm(x, gamma, beta, gamma.shape, epsilon)


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


_ACTIVATIONS: Final = ("none", "relu", "sigmoid")


class SoftmaxCrossEntropyLoss(_Function):
    """Cross-entropy with label smoothing."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> torch.Tensor:
        """Loss of each row, 0 for labels of ``padding_idx``.

        :param logits: [rows, v].
        :param labels: int64 [rows].
        :param half_to_float: changes nothing: losses have the contract's dtype.
        :returns: float32 [rows]; float64 for float64.
        :raises RuntimeError: other shapes or dtypes; ``half_to_float`` with wider logits.
        """
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
            raise RuntimeError(
                "Apex's cross-entropy takes logits [rows, v] and int64 labels [rows], not "
                f"{list(logits.shape)} and {labels.dtype} {list(labels.shape)}"
            )
        if half_to_float and logits.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError(f"half_to_float takes float16 and bfloat16, not {logits.dtype}")
        padding = labels == padding_idx
        classes = logits.shape[1]
        # The contract gives every wrong class an equal share; Apex counts the right one too.
        share = smoothing * (classes - 1) / classes
        losses = kernel(CROSS_ENTROPY)(
            logits, labels.masked_fill(padding, 0), label_smoothing=share
        )
        return losses.masked_fill(padding, 0.0)


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


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """torch's own, with Apex's options.

    :raises ValueError: ``channel_last`` or ``fuse_relu``.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        if channel_last or fuse_relu:
            raise ValueError("SyncBatchNorm has no channel_last and fuse_relu here: they are False")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, process_group)
