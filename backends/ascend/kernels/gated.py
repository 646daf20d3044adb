"""SwiGLU, GEGLU and GELU in one pass each."""

from __future__ import annotations

from typing import Final, Literal

import torch

from accel_bridge.backends.ascend import limits
from accel_bridge.kernels import GEGLU, SWIGLU


def swiglu(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The contract ``swiglu``."""
    x = input if bias is None else input + bias
    output: torch.Tensor = torch.ops.npu.npu_swiglu(x.contiguous(), -1)
    return output


def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``torch.nn.functional.gelu`` that honours ``approximate``, which torch_npu's ignores.

    Source: op-plugin, sequence of npu_gelu: PyTorch's own gelu on an NPU is always the tanh form.

    :param input: any shape; float16, bfloat16 or float32.
    :param approximate: ``none`` (error function) or ``tanh``.
    """
    output: torch.Tensor = torch.ops.npu.npu_gelu(input, approximate=approximate)
    return output


def geglu(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: Literal["none", "tanh"] = "tanh",
) -> torch.Tensor:
    """The contract ``geglu``, on npu_gelu, which sequences both forms."""
    gate, linear = (input if bias is None else input + bias).chunk(2, dim=-1)
    return gelu(gate, approximate=approximate) * linear


def _supports(
    input: torch.Tensor, bias: torch.Tensor | None = None, *, approximate: str = "tanh"
) -> str | None:
    if not input.numel():
        return "npu_swiglu: empty tensors are not supported"
    if input.dim() > 8:
        return f"npu_swiglu: at most 8 dimensions, not {input.dim()}"
    return limits.here().dtype_objection("npu_swiglu", input)


KERNELS: Final = (
    SWIGLU.kernel(swiglu, "one pass instead of two", _supports, "torch_npu.npu_swiglu"),
    GEGLU.kernel(
        geglu,
        "honours `approximate`, which torch_npu's own gelu ignores",
        _supports,
        "torch_npu.npu_gelu",
    ),
)
