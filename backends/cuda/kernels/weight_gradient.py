"""Weight gradients added to float32 sums: cuBLAS's GEMMs, or quack-kernels' on Hopper.

Legend: t tokens, k input size, m output size.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Final

import torch

from accel_bridge.backends.cuda.kernels._choice import capability, may_compile, without_package
from accel_bridge.kernels import WEIGHT_GRADIENT

_HALF: Final = (torch.float16, torch.bfloat16)
#: A GEMM with its sum in another precision; torch 2.8 has it.
_ADDMM: Final = getattr(torch.ops.aten.addmm, "dtype_out", None)
#: Multiply-adds from which on quack's GEMM was measured: 1.02 to 1.08 times cuBLAS on an H200
#: under sustained load.
_LARGE: Final = 2**34
#: tile_M, tile_N, cluster_M, cluster_N: the fastest of ten there.
_TILES: Final = (128, 192, 2, 1)


@cache
def without_quack() -> str | None:
    """Why quack-kernels cannot be used, or None."""
    return without_package("quack-kernels", "quack.gemm", ("0.6.5",), "hopper")


@cache
def _quack_gemm() -> Any:
    return importlib.import_module("quack.gemm").gemm


def _is_for_quack(gradient: torch.Tensor, x: torch.Tensor, main_grad: torch.Tensor) -> bool:
    """Whether quack's GEMM takes gradient [m, t], x [t, k] and main_grad [m, k]."""
    if main_grad.dtype != torch.float32 or x.dtype not in _HALF:
        return False  # it rounds a product before it adds it to a sum of 16 bits
    if capability(x.device) != (9, 0) or gradient.shape[0] * x.numel() < _LARGE:
        return False
    if without_quack() is not None or not may_compile(x):
        return False
    return all(map(_is_aligned, (gradient, x, main_grad)))


def _is_aligned(tensor: torch.Tensor) -> bool:
    """Whether the copy engine can read a matrix: rows or columns of 16 bytes, side by side."""
    near, far = sorted(tensor.stride())
    even = not any(size % 8 for size in (*tensor.shape, far))
    return near == 1 and even and tensor.data_ptr() % 16 == 0


def weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    main_grad: torch.Tensor,
    *,
    accumulate: bool = True,
) -> None:
    """The contract ``weight_gradient``: the GEMM itself adds to ``main_grad``."""
    if torch.is_grad_enabled():  # a backward pass has switched it off, which takes 3 us
        with torch.no_grad():
            weight_gradient(input, grad_output, main_grad, accumulate=accumulate)
        return
    x, gradient = input, grad_output
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    if gradient.dim() != 2:
        gradient = gradient.reshape(-1, gradient.shape[-1])
    gradient = gradient.t()
    if _is_for_quack(gradient, x, main_grad):
        options = {"pingpong": True, "add_to_output": accumulate, "b_kn": True}
        _quack_gemm()(gradient, x, main_grad, None, None, *_TILES, **options)
    elif main_grad.dtype == x.dtype:
        main_grad.addmm_(gradient, x, beta=int(accumulate))
    else:
        assert _ADDMM is not None
        _ADDMM(main_grad, gradient, x, torch.float32, beta=int(accumulate), out=main_grad)


def _weight_gradient_supports(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    main_grad: torch.Tensor,
    *,
    accumulate: bool = True,
) -> str | None:
    if input.dtype != grad_output.dtype:
        return f"input is {input.dtype}, its gradient {grad_output.dtype}"
    if main_grad.dtype == input.dtype:
        return None
    if main_grad.dtype != torch.float32 or input.dtype not in _HALF:
        return f"GEMMs of {input.dtype} are not added to {main_grad.dtype}"
    if _ADDMM is None:
        return "this torch has no addmm with an output dtype (2.8 has)"
    return None


KERNELS: Final = (
    WEIGHT_GRADIENT.kernel(
        weight_gradient,
        "the GEMM adds to the float32 sum itself: cuBLAS, or quack-kernels on Hopper",
        _weight_gradient_supports,
        source="torch.addmm with out_dtype, and quack-kernels",
    ),
)
