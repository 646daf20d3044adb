"""Shim for Apex's weight gradients that are added to ``main_grad`` by the GEMM itself."""

from __future__ import annotations

import torch

from accel_bridge.kernels import WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel


def wgrad_gemm_accum_fp32(
    input: torch.Tensor, d_output: torch.Tensor, d_weight: torch.Tensor
) -> None:
    """``d_weight += d_output^T @ input``, in place.

    :param input: [..., k], bfloat16, float16 or float32.
    :param d_output: [..., m], as ``input``.
    :param d_weight: [m, k], float32.
    """
    kernel(WEIGHT_GRADIENT)(input, d_output, d_weight)


def wgrad_gemm_accum_fp16(
    input: torch.Tensor, d_output: torch.Tensor, d_weight: torch.Tensor
) -> None:
    """The same with ``d_weight`` in float16 or bfloat16."""
    kernel(WEIGHT_GRADIENT)(input, d_output, d_weight)
