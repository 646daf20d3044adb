"""Names and tables that Transformer Engine's modules share."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed

from .cpp_extensions._enums import DType

TE_DType: Final = {
    torch.uint8: DType.kByte,
    torch.float8_e4m3fn: DType.kFloat8E4M3,
    torch.float8_e5m2: DType.kFloat8E5M2,
    torch.int32: DType.kInt32,
    torch.float32: DType.kFloat32,
    torch.float16: DType.kFloat16,
    torch.bfloat16: DType.kBFloat16,
}
TE_DType_To_Torch: Final = {number: dtype for dtype, number in TE_DType.items()}

AttnMaskTypes: Final = (
    "no_mask",
    "padding",
    "causal",
    "padding_causal",
    "causal_bottom_right",
    "padding_causal_bottom_right",
    "arbitrary",
)
AttnTypes: Final = ("self", "cross")
AttnBiasTypes: Final = ("pre_scale_bias", "post_scale_bias", "no_bias", "alibi")
QKVLayouts: Final = (
    *("sb3hd", "sbh3d", "sbhd_sb2hd", "sbhd_sbh2d", "sbhd_sbhd_sbhd"),
    *("bs3hd", "bsh3d", "bshd_bs2hd", "bshd_bsh2d", "bshd_bshd_bshd"),
    *("t3hd", "th3d", "thd_t2hd", "thd_th2d", "thd_thd_thd"),
    *("sbhd_bshd_bshd", "bshd_sbhd_sbhd", "thd_bshd_bshd", "thd_sbhd_sbhd"),
    *("paged_kv_bshd_bshd_bshd", "paged_kv_bshd_sbhd_sbhd"),
    *("paged_kv_sbhd_bshd_bshd", "paged_kv_sbhd_sbhd_sbhd"),
    *("paged_kv_thd_bshd_bshd", "paged_kv_thd_sbhd_sbhd"),
)
LayerTypes: Final = ("encoder", "decoder")
GemmParallelModes: Final = ("row", "column", None)
dist_group_type = torch.distributed.ProcessGroup
MXFP8_BLOCK_SCALING_SIZE: Final = 32
NVFP4_BLOCK_SCALING_SIZE: Final = 16
