"""Which recipes the active backend's kernels can follow, and why not the others."""

from __future__ import annotations

import functools
from typing import Any

import torch

from accel_bridge.kernels import (
    FLOAT8_BLOCK_QUANTIZE,
    FLOAT8_QUANTIZE,
    SCALED_MATMUL,
    Contract,
    Kernels,
    active,
)

from ..common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from .cpp_extensions._enums import DType

Support = tuple[bool, str]


def _refusal(what: str, evidence: str, next_step: str) -> Support:
    return False, f"{what}\n  evidence: {evidence}\n  next:     {next_step}"


@functools.lru_cache(maxsize=8)
def _missing(kernels: Kernels, contracts: tuple[Contract[Any, Any], ...], what: str) -> Support:
    for contract in contracts:
        if contract not in kernels:
            return _refusal(
                f"{what} is not available on this device",
                f"the active backend has no kernel for {contract.name}",
                "train in bfloat16 (leave out --fp8-format), or use a device with FP8 arithmetic",
            )
    return True, ""


@functools.lru_cache(maxsize=8)
def _outside(kernels: Kernels, what: str) -> Support:
    """Whether an ordinary FP8 product is outside of the kernel's range."""
    numbers = torch.empty(16, 16, dtype=torch.float8_e4m3fn, device="cuda")
    scale = torch.ones(1, device="cuda")
    kernel = kernels[SCALED_MATMUL]
    reason = kernel.supports(numbers, numbers, scale, scale, dtype=torch.bfloat16)
    if reason is None:
        return True, ""
    return _refusal(
        f"{what} is not available on this device",
        reason,
        "train in bfloat16 (leave out --fp8-format), or use a device with FP8 arithmetic",
    )


def check_fp8_support() -> Support:
    """Whether products of FP8 tensors with one scale each are available, and why not."""
    kernels = active.kernels()
    found = _missing(kernels, (FLOAT8_QUANTIZE, SCALED_MATMUL), "FP8")
    return _outside(kernels, "FP8") if found[0] else found


def check_fp8_block_scaling_support() -> Support:
    """Whether products of FP8 tensors with a scale for each block are available, and why not."""
    found = check_fp8_support()
    if not found[0]:
        return found
    return _missing(active.kernels(), (FLOAT8_BLOCK_QUANTIZE,), "FP8 with block scales")


def check_mxfp8_support() -> Support:
    """MXFP8 has no kernels on any backend."""
    return _refusal(
        "MXFP8 is not available on this device",
        "no backend of accel_bridge has kernels for scales of 32 numbers",
        "choose --fp8-recipe blockwise, tensorwise or delayed",
    )


def check_nvfp4_support() -> Support:
    """NVFP4 has no kernels on any backend."""
    return _refusal(
        "NVFP4 is not available on this device",
        "no backend of accel_bridge has kernels for FP4",
        "choose --fp8-format hybrid with --fp8-recipe blockwise, tensorwise or delayed",
    )


def check_recipe_support(recipe: Recipe | None) -> None:
    """:raises AssertionError: the device cannot follow ``recipe``."""
    check = {
        DelayedScaling: check_fp8_support,
        Float8CurrentScaling: check_fp8_support,
        Float8BlockScaling: check_fp8_block_scaling_support,
        MXFP8BlockScaling: check_mxfp8_support,
        NVFP4BlockScaling: check_nvfp4_support,
    }
    for kind, support in check.items():
        if isinstance(recipe, kind):
            supported, reason = support()
            assert supported, reason


def get_default_fp8_recipe() -> Recipe:
    """The recipe when none is named."""
    return DelayedScaling()


def get_default_recipe() -> Recipe:
    """The recipe when none is named."""
    return get_default_fp8_recipe()


def get_align_size_for_quantization(recipe: Recipe) -> int:
    """Multiples to which the rows of a group are padded."""
    if recipe.mxfp8():
        return 32
    return 128 if recipe.nvfp4() else 16


def _is_e4m3(recipe: Any, forward: bool) -> bool:
    return recipe.fp8_format == Format.E4M3 or (recipe.fp8_format == Format.HYBRID and forward)


def get_fp8_torch_dtype(fp8_recipe: Recipe, fprop_tensor: bool = True) -> torch.dtype:
    """torch's name of a recipe's forward or backward format."""
    return torch.float8_e4m3fn if _is_e4m3(fp8_recipe, fprop_tensor) else torch.float8_e5m2


def get_fp8_te_dtype(fp8_recipe: Recipe, fprop_tensor: bool = True) -> DType:
    """The library's name of a recipe's forward or backward format."""
    return DType.kFloat8E4M3 if _is_e4m3(fp8_recipe, fprop_tensor) else DType.kFloat8E5M2


def get_fp4_te_dtype(fp4_recipe: Any) -> DType:
    """The library's name of an FP4 recipe's format.

    :raises ValueError: it is not E2M1.
    """
    if fp4_recipe.fp4_format == Format.E2M1:
        return DType.kFloat4E2M1
    raise ValueError(f"Unsupported FP4 format: {fp4_recipe.fp4_format}")


def get_fp8_max(fp8_recipe: Recipe, fprop_tensor: bool = True) -> float:
    """The largest number of a recipe's forward or backward format."""
    chosen = Format.E4M3 if _is_e4m3(fp8_recipe, fprop_tensor) else Format.E5M2
    return chosen.value.max_fwd


def _answer(support: Support, return_reason: bool) -> bool | Support:
    return support if return_reason else support[0]


def is_fp8_available(return_reason: bool = False) -> bool | Support:
    """Whether delayed and current scaling are available, and why not."""
    return _answer(check_fp8_support(), return_reason)


def is_mxfp8_available(return_reason: bool = False) -> bool | Support:
    """Whether MXFP8 is available, and why not."""
    return _answer(check_mxfp8_support(), return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> bool | Support:
    """Whether block scaling is available, and why not."""
    return _answer(check_fp8_block_scaling_support(), return_reason)


def is_nvfp4_available(return_reason: bool = False) -> bool | Support:
    """Whether NVFP4 is available, and why not."""
    return _answer(check_nvfp4_support(), return_reason)
