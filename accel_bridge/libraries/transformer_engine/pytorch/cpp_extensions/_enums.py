"""Enumerations of Transformer Engine's compiled extension, with its values.

Source: transformer_engine/common/include/transformer_engine/*.h of Transformer Engine 2.13.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class DType(IntEnum):
    """Element types."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


class FP8FwdTensors(IntEnum):
    """Places of a module's forward quantizers."""

    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM1_OUTPUT = 2
    GEMM2_INPUT = 3
    GEMM2_WEIGHT = 4
    GEMM2_OUTPUT = 5
    GEMM3_INPUT = 6
    GEMM3_WEIGHT = 7
    GEMM3_OUTPUT = 8


class FP8BwdTensors(IntEnum):
    """Places of a module's backward quantizers."""

    GRAD_OUTPUT1 = 0
    GRAD_INPUT1 = 1
    GRAD_OUTPUT2 = 2
    GRAD_INPUT2 = 3
    GRAD_OUTPUT3 = 4
    GRAD_INPUT3 = 5


class CommOverlapType(IntEnum):
    """Collectives that could overlap with a product."""

    RS = 0
    AG = 1


class NVTE_Fused_Attn_Backend(IntEnum):
    """Fused attention's own backends; none of them is here."""

    NVTE_No_Backend = -1
    NVTE_F16_max512_seqlen = 0
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


def _numbered(name: str, members: str) -> type[Enum]:
    """An enumeration of ``NVTE_`` members that count from 0."""
    return IntEnum(name, {f"NVTE_{m}": i for i, m in enumerate(members.split())})  # type: ignore[return-value]


NVTE_Bias_Type = _numbered("NVTE_Bias_Type", "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI")
NVTE_Mask_Type = _numbered(
    "NVTE_Mask_Type",
    "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK "
    "PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)
NVTE_Softmax_Type = _numbered(
    "NVTE_Softmax_Type", "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX"
)
NVTE_QKV_Format = _numbered(
    "NVTE_QKV_Format", "SBHD BSHD THD BSHD_2SBHD SBHD_2BSHD THD_2BSHD THD_2SBHD"
)
NVTE_QKV_Layout = _numbered(
    "NVTE_QKV_Layout",
    "SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD "
    "BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D BSHD_BSHD_BSHD "
    "T3HD TH3D THD_T2HD THD_TH2D THD_THD_THD "
    "SBHD_BSHD_BSHD BSHD_SBHD_SBHD THD_BSHD_BSHD THD_SBHD_SBHD "
    "Paged_KV_BSHD_BSHD_BSHD Paged_KV_BSHD_SBHD_SBHD Paged_KV_SBHD_BSHD_BSHD "
    "Paged_KV_SBHD_SBHD_SBHD Paged_KV_THD_BSHD_BSHD Paged_KV_THD_SBHD_SBHD",
)

ENUMS: Final = (
    DType,
    FP8FwdTensors,
    FP8BwdTensors,
    CommOverlapType,
    NVTE_Fused_Attn_Backend,
    NVTE_Bias_Type,
    NVTE_Mask_Type,
    NVTE_Softmax_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
)
for _enum in ENUMS:
    # Pickles name the compiled extension, which re-exports them.
    _enum.__module__ = "transformer_engine_torch"
