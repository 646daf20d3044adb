"""Fusions, tried in the order in which they are registered here."""

from __future__ import annotations

from ..fuser import register_backward_fusion, register_forward_fusion
from .backward_activation_bias import BackwardActivationBias
from .backward_add_rmsnorm import BackwardAddRMSNorm
from .backward_linear_add import BackwardLinearAdd
from .backward_linear_scale import BackwardLinearScale
from .forward_linear_bias_activation import ForwardLinearBiasActivation
from .forward_linear_bias_add import ForwardLinearBiasAdd
from .forward_linear_scale_add import ForwardLinearScaleAdd

__all__ = [
    "BackwardActivationBias",
    "BackwardAddRMSNorm",
    "BackwardLinearAdd",
    "BackwardLinearScale",
    "ForwardLinearBiasActivation",
    "ForwardLinearBiasAdd",
    "ForwardLinearScaleAdd",
]

for _fusion in (ForwardLinearBiasAdd, ForwardLinearBiasActivation, ForwardLinearScaleAdd):
    register_forward_fusion(_fusion.fuse_forward_ops)
for _fusion in (
    BackwardLinearAdd,
    BackwardLinearScale,
    BackwardActivationBias,
    BackwardAddRMSNorm,
):
    register_backward_fusion(_fusion.fuse_backward_ops)
