"""The NPU's kernels: torch_npu's fused operators behind the contracts.

They are called as ``torch.ops.npu.*``: torch_npu registers them when the backend imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from accel_bridge.backends.ascend.kernels.adamw import ADAMW
from accel_bridge.backends.ascend.kernels.attention import ATTENTION
from accel_bridge.backends.ascend.kernels.gated import GEGLU, SWIGLU
from accel_bridge.backends.ascend.kernels.grouped_matmul import GROUPED_MATMUL
from accel_bridge.backends.ascend.kernels.masked_softmax import SCALED_MASKED_SOFTMAX
from accel_bridge.backends.ascend.kernels.norms import LAYER_NORM, RMS_NORM
from accel_bridge.backends.ascend.kernels.rotary import ROTARY
from accel_bridge.kernels import Kernel, reference_kernel

#: Contracts that plain PyTorch serves, each with the reason.
_PLAIN: Final = {
    "weight_gradient": "torch_npu's addmm takes one dtype, so the product is in float32",
    "embedding_gradient": "gradients of linear layers are not fused either, see weight_gradient",
    "token_permute": "npu_moe_token_permute returns the inverse of the contract's indices",
    "token_unpermute": "npu_moe_token_unpermute needs a fixed number of experts for every token",
}

#: Every contract's kernel on the NPU.
KERNELS: Final[Mapping[str, Kernel]] = MappingProxyType(
    {name: reference_kernel(name, why) for name, why in _PLAIN.items()}
    | {
        kernel.contract: kernel
        for kernel in (
            ATTENTION,
            RMS_NORM,
            LAYER_NORM,
            ROTARY,
            SWIGLU,
            GEGLU,
            SCALED_MASKED_SOFTMAX,
            ADAMW,
            GROUPED_MATMUL,
        )
    }
)
