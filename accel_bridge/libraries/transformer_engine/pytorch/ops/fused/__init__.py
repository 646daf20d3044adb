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

for _forward in (
    ForwardLinearBiasAdd.fuse_forward_ops,
    ForwardLinearBiasActivation.fuse_forward_ops,
    ForwardLinearScaleAdd.fuse_forward_ops,
):
    register_forward_fusion(_forward)
for _backward in (
    BackwardLinearAdd.fuse_backward_ops,
    BackwardLinearScale.fuse_backward_ops,
    BackwardActivationBias.fuse_backward_ops,
    BackwardAddRMSNorm.fuse_backward_ops,
):
    register_backward_fusion(_backward)
