"""FP8's global state, and the contexts that change it.

Source: transformer_engine/pytorch/quantization.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ..common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from ._amax import (
    _amax_and_scale_update,
    _compute_amax_and_update_history,
    _compute_scaling_factor,
    _default_get_amax_and_update_history,
    _default_sf_compute,
    _update_amax_history,
    split_and_copy,
)
from ._fp8_state import FP8GlobalStateManager, Group
from ._fp8_support import (
    check_fp8_block_scaling_support,
    check_fp8_support,
    check_mxfp8_support,
    check_nvfp4_support,
    check_recipe_support,
    get_align_size_for_quantization,
    get_default_fp8_recipe,
    get_default_recipe,
    get_fp4_te_dtype,
    get_fp8_max,
    get_fp8_te_dtype,
    get_fp8_torch_dtype,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
)
from ._recipe_states import (
    CustomRecipeState,
    DelayedScalingRecipeState,
    Float8BlockScalingRecipeState,
    Float8CurrentScalingRecipeState,
    MXFP8BlockScalingRecipeState,
    NVFP4BlockScalingRecipeState,
    RecipeState,
)

__all__ = [
    "CustomRecipe",
    "CustomRecipeState",
    "DelayedScaling",
    "DelayedScalingRecipeState",
    "FP8GlobalStateManager",
    "Float8BlockScaling",
    "Float8BlockScalingRecipeState",
    "Float8CurrentScaling",
    "Float8CurrentScalingRecipeState",
    "Format",
    "MXFP8BlockScaling",
    "MXFP8BlockScalingRecipeState",
    "NVFP4BlockScaling",
    "NVFP4BlockScalingRecipeState",
    "Recipe",
    "RecipeState",
    "_amax_and_scale_update",
    "_compute_amax_and_update_history",
    "_compute_scaling_factor",
    "_default_get_amax_and_update_history",
    "_default_sf_compute",
    "_update_amax_history",
    "autocast",
    "check_fp8_block_scaling_support",
    "check_fp8_support",
    "check_mxfp8_support",
    "check_nvfp4_support",
    "check_recipe_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_align_size_for_quantization",
    "get_default_fp8_recipe",
    "get_default_recipe",
    "get_fp4_te_dtype",
    "get_fp8_max",
    "get_fp8_te_dtype",
    "get_fp8_torch_dtype",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
    "split_and_copy",
]


def _deprecated(old: str, new: str) -> None:
    warnings.warn(
        f"{old} is deprecated and will be removed in a future release. Use {new} instead.",
        category=DeprecationWarning,
        stacklevel=4,
    )


@contextmanager
def quantized_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Modules made inside hold quantized parameters only.

    :param recipe: how; the default recipe for None.
    :param preserve_high_precision_init_val: parameters keep their first values on the host, and
        have ``get_high_precision_init_val()`` and ``clear_high_precision_init_val()``.
    """
    manager = FP8GlobalStateManager
    before = (manager.FP8_PARAMETERS, manager.FP8_RECIPE, manager.HIGH_PRECISION_INIT_VAL)
    manager.FP8_PARAMETERS = enabled
    manager.FP8_RECIPE = get_default_fp8_recipe() if recipe is None else recipe
    manager.HIGH_PRECISION_INIT_VAL = preserve_high_precision_init_val
    try:
        yield
    finally:
        manager.FP8_PARAMETERS, manager.FP8_RECIPE, manager.HIGH_PRECISION_INIT_VAL = before


@contextmanager
def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """The former name of :func:`quantized_model_init`."""
    _deprecated("fp8_model_init", "quantized_model_init")
    with quantized_model_init(enabled, recipe, preserve_high_precision_init_val):
        yield


@contextmanager
def autocast(
    enabled: bool = True,
    calibrating: bool = False,
    recipe: Recipe | None = None,
    amax_reduction_group: Group = None,
    _graph: bool = False,
) -> Iterator[None]:
    """Modules called inside quantize what they multiply.

    :param calibrating: learn scales although FP8 is off.
    :param recipe: how; the default recipe for None.
    :param amax_reduction_group: processes that share largest magnitudes.
    :raises AssertionError: the device cannot follow the recipe.
    """
    if enabled:
        check_recipe_support(recipe)
    before = FP8GlobalStateManager.get_autocast_state()
    FP8GlobalStateManager.autocast_enter(enabled, calibrating, recipe, amax_reduction_group, _graph)
    try:
        yield
    finally:
        FP8GlobalStateManager.set_autocast_state(before)
        FP8GlobalStateManager.autocast_exit(enabled, _graph=_graph)


@contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Group = None,
    _graph: bool = False,
) -> Iterator[None]:
    """The former name of :func:`autocast`."""
    _deprecated("fp8_autocast", "autocast")
    with autocast(enabled, calibrating, fp8_recipe, fp8_group, _graph):
        yield
