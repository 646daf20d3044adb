"""Operations that can be chained, and that run faster as a chain.

Source of the names: transformer_engine/pytorch/ops of Transformer Engine 2.13. Its Userbuffers
operations are absent.
"""

from __future__ import annotations

from . import basic, fused
from .basic import (
    GEGLU,
    GELU,
    GLU,
    QGEGLU,
    QGELU,
    AddExtraInput,
    AllGather,
    AllReduce,
    BasicLinear,
    Bias,
    ClampedSwiGLU,
    ConstantScale,
    Dropout,
    GroupedLinear,
    Identity,
    L2Normalization,
    LayerNorm,
    MakeExtraOutput,
    Quantize,
    ReduceScatter,
    ReGLU,
    ReLU,
    Reshape,
    RMSNorm,
    ScaledSwiGLU,
    SiLU,
    SReGLU,
    SReLU,
    SwiGLU,
)
from .fuser import register_backward_fusion, register_forward_fusion
from .linear import Linear
from .op import BasicOperation, FusedOperation, FusibleOperation
from .sequential import Sequential

__all__ = [
    "GEGLU",
    "GELU",
    "GLU",
    "QGEGLU",
    "QGELU",
    "AddExtraInput",
    "AllGather",
    "AllReduce",
    "BasicLinear",
    "BasicOperation",
    "Bias",
    "ClampedSwiGLU",
    "ConstantScale",
    "Dropout",
    "FusedOperation",
    "FusibleOperation",
    "GroupedLinear",
    "Identity",
    "L2Normalization",
    "LayerNorm",
    "Linear",
    "MakeExtraOutput",
    "Quantize",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "ReduceScatter",
    "Reshape",
    "SReGLU",
    "SReLU",
    "ScaledSwiGLU",
    "Sequential",
    "SiLU",
    "SwiGLU",
    "basic",
    "fused",
    "register_backward_fusion",
    "register_forward_fusion",
]
