"""Enumerations and plain classes of the extension, with the values of NVIDIA's headers.

Source: transformer_engine.h, fused_attn.h, comm_gemm_overlap.h and pybind_helper.h of 2.8 to 2.20.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import torch

from accel_bridge.libraries.transformer_engine_torch.releases import RELEASE

_EXTENSION: Final = "transformer_engine_torch"


def _enum(name: str, members: str, prefix: str = "", /, **further: int) -> Any:
    """An enumeration that counts from 0; pickled as the extension's."""
    values = {prefix + one: number for number, one in enumerate(members.split())}
    return IntEnum(name, values | further, module=_EXTENSION)


class DType(IntEnum):
    """Data types of the extension's tensors."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


DType.__module__ = _EXTENSION

#: DType -> torch's. Transformer Engine passes its own IntEnum of the same numbers (2.20) or this.
TORCH_DTYPE: Final[dict[int, torch.dtype]] = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
    DType.kFloat8E4M3: torch.float8_e4m3fn,
    DType.kFloat8E5M2: torch.float8_e5m2,
}

NVTE_Bias_Type = _enum("NVTE_Bias_Type", "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI", "NVTE_")
NVTE_Mask_Type = _enum(
    "NVTE_Mask_Type",
    "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK "
    "PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
    "NVTE_",
)
NVTE_Softmax_Type = _enum(
    "NVTE_Softmax_Type", "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX", "NVTE_"
)
NVTE_QKV_Format = _enum(
    "NVTE_QKV_Format",
    "SBHD BSHD THD BSHD_2SBHD SBHD_2BSHD THD_2BSHD THD_2SBHD BHSD QKV_Format_NOT_SET",
    "NVTE_",
)
NVTE_QKV_Layout = _enum(
    "NVTE_QKV_Layout",
    "SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D "
    "BSHD_BSHD_BSHD T3HD TH3D THD_T2HD THD_TH2D THD_THD_THD SBHD_BSHD_BSHD BSHD_SBHD_SBHD "
    "THD_BSHD_BSHD THD_SBHD_SBHD Paged_KV_BSHD_BSHD_BSHD Paged_KV_BSHD_SBHD_SBHD "
    "Paged_KV_SBHD_BSHD_BSHD Paged_KV_SBHD_SBHD_SBHD Paged_KV_THD_BSHD_BSHD "
    "Paged_KV_THD_SBHD_SBHD BHSD_BHSD_BHSD QKV_Layout_NOT_SET",
    "NVTE_",
)
_older = {"NVTE_F16_max512_seqlen": 0} if RELEASE < (2, 16) else {}
NVTE_Fused_Attn_Backend = _enum(
    "NVTE_Fused_Attn_Backend",
    "",
    **_older,
    NVTE_F16_arbitrary_seqlen=1,
    NVTE_FP8=2,
    NVTE_No_Backend=-1,
)
Float8BlockScaleTensorFormat = _enum("Float8BlockScaleTensorFormat", "GEMM_READY COMPACT INVALID")
CommOverlapType = _enum("CommOverlapType", "RS AG")
CommOverlapAlgo = _enum(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS "
    "SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P "
    "EXTERNAL_BULK_OVERLAP_AG",
)
FP8FwdTensors = _enum(
    "FP8FwdTensors",
    "GEMM1_INPUT GEMM1_WEIGHT GEMM1_OUTPUT GEMM2_INPUT GEMM2_WEIGHT GEMM2_OUTPUT "
    "GEMM3_INPUT GEMM3_WEIGHT GEMM3_OUTPUT",
)
FP8BwdTensors = _enum(
    "FP8BwdTensors",
    "GRAD_OUTPUT1 GRAD_INPUT1 GRAD_OUTPUT2 GRAD_INPUT2 GRAD_OUTPUT3 GRAD_INPUT3",
)
NVTERoutingMapFormat = _enum("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8")
NVTEQBHistogramMode = _enum("NVTEQBHistogramMode", "TWO_KERNEL FUSED_ATOMIC")
NVTEScalingMode = _enum(
    "NVTEScalingMode",
    "NVTE_DELAYED_TENSOR_SCALING NVTE_MXFP8_1D_SCALING NVTE_BLOCK_SCALING_1D "
    "NVTE_BLOCK_SCALING_2D NVTE_NVFP4_1D_SCALING",
    NVTE_INVALID_SCALING=100,
)


class FP8TensorMeta:
    """Scales and history of delayed scaling; Transformer Engine sets the attributes."""

    scale: torch.Tensor
    scale_inv: torch.Tensor
    amax_history: torch.Tensor


FP8TensorMeta.__module__ = _EXTENSION
