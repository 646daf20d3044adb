"""The CUDA backend's kernels: torch's own, without anything to compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, cast

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from accel_bridge.backends._sdpa import ATTENTION
from accel_bridge.kernels import AttentionResult, Kernel, gamma

#: Not cuDNN's: its gradients were wrong by a factor of hundreds in batch-first cases of the parity
#: ladder (head size 40, grouped heads; torch 2.11 on an H200, 2026-11-21).
SDPA_BACKENDS: Final = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@wraps(ATTENTION.function)
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> AttentionResult:
    """The contract ``attention`` on the SDPA backends that pass the parity ladder."""
    with sdpa_kernel(SDPA_BACKENDS):
        return cast("AttentionResult", ATTENTION.function(query, key, value, **options))


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``layer_norm``; torch's kernel keeps its sums in float32."""
    factor = gamma(weight, zero_centered_gamma, input.dtype)
    shift = None if bias is None else bias.to(input.dtype)
    return functional.layer_norm(input, factor.shape, factor, shift, eps)


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``rms_norm``; torch's kernel keeps its sums in float32."""
    factor = gamma(weight, zero_centered_gamma, input.dtype)
    return functional.rms_norm(input, factor.shape, factor, eps)


#: The contracts for which torch has a fused CUDA kernel.
KERNELS: Final[Mapping[str, Kernel]] = MappingProxyType(
    {
        kernel.contract: kernel
        for kernel in (
            replace(ATTENTION, function=attention),
            Kernel(
                "layer_norm", layer_norm, "fused in torch", source="torch.nn.functional.layer_norm"
            ),
            Kernel("rms_norm", rms_norm, "fused in torch", source="torch.nn.functional.rms_norm"),
        )
    }
)
