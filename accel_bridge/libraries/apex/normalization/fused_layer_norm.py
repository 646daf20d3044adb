"""LayerNorm and RMSNorm on the active backend's kernels.

``memory_efficient`` saves the output instead of the input in the real library; here it changes
nothing. Outputs have the weight's dtype, also where the real functions of one dtype only would
refuse another's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch

from accel_bridge.libraries.norms import layer_norm, rms_norm

Shape = int | Sequence[int]


def _sizes(shape: Shape) -> torch.Size:
    return torch.Size((int(shape),) if isinstance(shape, Integral) else shape)  # type: ignore[arg-type]


class FusedLayerNormAffineFunction:
    """LayerNorm with weight and bias.

    The kernel brings its own gradient: this is no ``torch.autograd.Function``, but is called as
    one.
    """

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
        """:meth:`apply`, after a context that is not used."""
        return layer_norm(input, weight, bias, _sizes(normalized_shape), eps)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """input [..., *shape], weight and bias [*shape], shape and eps -> as input."""
        return cls.forward(None, *args, **kwargs)


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """The same for an input of another dtype than the weight's."""


class FusedRMSNormAffineFunction:
    """RMSNorm with a weight; see :class:`FusedLayerNormAffineFunction`."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        """:meth:`apply`, after a context that is not used."""
        return rms_norm(input, weight, _sizes(normalized_shape), eps)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """input [..., *shape], weight [*shape], shape and eps -> as input."""
        return cls.forward(None, *args, **kwargs)


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


class FusedLayerNorm(torch.nn.Module):
    """LayerNorm; parameters, options and defaults of ``torch.nn.LayerNorm``.

    :param normalized_shape: sizes of the last dimensions.
    :param eps: added to the variance.
    :param elementwise_affine: with weight and bias.
    :param memory_efficient: accepted; see the module's documentation.
    """

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None

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
        for name in ("weight", "bias"):
            parameter = None
            if elementwise_affine:
                parameter = torch.nn.Parameter(torch.empty(*self.normalized_shape))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        if self.weight is not None and self.bias is not None:
            torch.nn.init.ones_(self.weight)
            torch.nn.init.zeros_(self.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise input [..., *shape]."""
        return layer_norm(input, self.weight, self.bias, self.normalized_shape, self.eps)

    def extra_repr(self) -> str:
        return f"{tuple(self.normalized_shape)}, eps={self.eps}, affine={self.elementwise_affine}"


class MixedFusedLayerNorm(FusedLayerNorm):
    """LayerNorm whose output has the parameters' dtype; always with weight and bias."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        if not kwargs.pop("elementwise_affine", True):
            raise RuntimeError("MixedFusedLayerNorm does not support elementwise_affine = False")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class FusedRMSNorm(torch.nn.Module):
    """RMSNorm; options as :class:`FusedLayerNorm`."""

    weight: torch.nn.Parameter | None

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
        parameter = None
        if elementwise_affine:
            parameter = torch.nn.Parameter(torch.empty(*self.normalized_shape))
        self.register_parameter("weight", parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise input [..., *shape]."""
        return rms_norm(input, self.weight, self.normalized_shape, self.eps)

    def extra_repr(self) -> str:
        return f"{tuple(self.normalized_shape)}, eps={self.eps}, affine={self.elementwise_affine}"


class MixedFusedRMSNorm(FusedRMSNorm):
    """RMSNorm whose output has the weight's dtype; always with a weight."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        if not kwargs.pop("elementwise_affine", True):
            raise RuntimeError("MixedFusedRMSNorm does not support elementwise_affine = False")
        super().__init__(normalized_shape, eps, True, memory_efficient)
