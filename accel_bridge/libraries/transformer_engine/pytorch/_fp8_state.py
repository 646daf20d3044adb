"""FP8's global state: whether it is on, by which recipe, and delayed scaling's buffers."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import torch

from ..common.recipe import Recipe
from ._amax import _amax_and_scale_update, split_and_copy
from ._fp8_support import (
    check_fp8_block_scaling_support,
    check_fp8_support,
    check_mxfp8_support,
    check_nvfp4_support,
    check_recipe_support,
    get_default_fp8_recipe,
    get_fp8_max,
    get_fp8_te_dtype,
)
from .constants import dist_group_type
from .cpp_extensions._scales import fused_amax_and_scale_update_after_reduction

Group = dist_group_type | None
State = tuple[bool, bool, Recipe | None, Group, bool, bool]
_POSITION = "global_fp8_buffer_pos_fwd_recompute"


class FP8GlobalStateManager:
    """Whether FP8 is on, by which recipe, and delayed scaling's buffers of all modules."""

    FP8_ENABLED: bool
    FP8_CALIBRATION: bool
    FP8_RECIPE: Recipe | None
    FP8_DISTRIBUTED_GROUP: Group
    FP8_PARAMETERS: bool
    HIGH_PRECISION_INIT_VAL: bool
    IS_FIRST_FP8_MODULE: bool
    FP8_GRAPH_CAPTURING: bool
    AUTOCAST_DEPTH: int
    global_amax_buffer: dict[str, list[torch.Tensor]]
    global_amax_history_buffer: dict[str, list[torch.Tensor]]
    global_scale_buffer: dict[str, list[torch.Tensor]]
    fp8_tensors_recompute_buffer: list[deque[list[torch.Tensor]]]
    fp8_available: bool | None
    reason_for_no_fp8: str
    autocast_arguments: dict[str, tuple[Recipe, Group]]
    skip_fp8_weight_update_tensor: torch.Tensor | None

    @classmethod
    def reset(cls) -> None:
        """Forget everything."""
        cls.FP8_ENABLED = False
        cls.FP8_CALIBRATION = False
        cls.FP8_RECIPE = None
        cls.FP8_DISTRIBUTED_GROUP = None
        cls.FP8_PARAMETERS = False
        cls.HIGH_PRECISION_INIT_VAL = False
        cls.IS_FIRST_FP8_MODULE = False
        cls.FP8_GRAPH_CAPTURING = False
        cls.AUTOCAST_DEPTH = 0
        cls.global_amax_buffer = {}
        cls.global_amax_history_buffer = {}
        cls.global_scale_buffer = {}
        cls.fp8_tensors_recompute_buffer = []
        cls.fp8_available = None
        cls.reason_for_no_fp8 = ""
        cls.autocast_arguments = {}
        cls.skip_fp8_weight_update_tensor = None

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """Say, on the device, whether weights keep their quantized copies."""
        if cls.skip_fp8_weight_update_tensor is None:
            cls.skip_fp8_weight_update_tensor = torch.empty(1, device="cuda")
        cls.skip_fp8_weight_update_tensor.fill_(skip)

    @classmethod
    def get_skip_fp8_weight_update_tensor(cls) -> torch.Tensor | None:
        """What was said, [1] in float32, or None."""
        return cls.skip_fp8_weight_update_tensor

    @classmethod
    def is_fp8_available(cls) -> tuple[bool, str]:
        """Whether one scale for each tensor is available, and why not."""
        return check_fp8_support()

    @classmethod
    def is_mxfp8_available(cls) -> tuple[bool, str]:
        """Whether MXFP8 is available, and why not."""
        return check_mxfp8_support()

    @classmethod
    def is_fp8_block_scaling_available(cls) -> tuple[bool, str]:
        """Whether block scaling is available, and why not."""
        return check_fp8_block_scaling_support()

    @classmethod
    def is_nvfp4_available(cls) -> tuple[bool, str]:
        """Whether NVFP4 is available, and why not."""
        return check_nvfp4_support()

    @staticmethod
    def get_meta_tensor_key(forward: bool = True) -> str:
        """Key of a recipe's state in a module's ``fp8_meta``."""
        return "scaling_fwd" if forward else "scaling_bwd"

    @staticmethod
    def get_fwd_bwd_key(forward: bool = True) -> str:
        """``forward`` or ``backward``."""
        return "forward" if forward else "backward"

    @classmethod
    def get_buffer_info(cls) -> str:
        """Key of a module's places in the global buffers, in its ``fp8_meta``."""
        return "buffer_index_and_autocast_key"

    @classmethod
    def get_key_in_buffer(cls, forward: bool, fp8_recipe: Recipe, fp8_group: Group) -> str:
        """Key of the global buffers."""
        key = cls.get_unique_autocast_key(fp8_recipe, fp8_group)
        return f"{cls.get_fwd_bwd_key(forward)}_{key}"

    @classmethod
    def split_key_in_buffer(cls, key: str) -> tuple[bool, str]:
        """(forward, the key without it)."""
        direction, autocast_key = key.split("_", 1)
        return direction == "forward", autocast_key

    @classmethod
    def add_fp8_tensors_to_global_buffer(cls, fp8_meta: dict[str, Any]) -> None:
        """Let a module's scales be updated with all others'; delayed scaling only, once."""
        index = cls.get_buffer_info()
        if not fp8_meta["recipe"].delayed() or index in fp8_meta:
            return
        places: list[Any] = []
        for forward in (True, False):
            state = fp8_meta.get(cls.get_meta_tensor_key(forward))
            if state is None:
                continue
            key = cls.get_key_in_buffer(forward, fp8_meta["recipe"], fp8_meta["fp8_group"])
            amaxes = cls.global_amax_buffer.setdefault(key, [])
            amaxes.append(state.amax_history[0])
            cls.global_amax_history_buffer.setdefault(key, []).append(state.amax_history)
            cls.global_scale_buffer.setdefault(key, []).append(state.scale)
            places += [len(amaxes) - 1, key]
        fp8_meta[index] = places

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Whether FP8 is on."""
        return cls.FP8_ENABLED

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Whether scales are learned without FP8."""
        return cls.FP8_CALIBRATION

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        """Whether new modules hold quantized parameters only."""
        return cls.FP8_PARAMETERS

    @classmethod
    def with_high_precision_init_val(cls) -> bool:
        """Whether these keep their first values on the host."""
        return cls.HIGH_PRECISION_INIT_VAL

    @classmethod
    def fp8_graph_capturing(cls) -> bool:
        """Whether a CUDA graph is recorded."""
        return cls.FP8_GRAPH_CAPTURING or torch.cuda.is_current_stream_capturing()

    @classmethod
    def is_first_fp8_module(cls) -> bool:
        """True for the first that asks inside of an autocast."""
        first = cls.IS_FIRST_FP8_MODULE
        cls.IS_FIRST_FP8_MODULE = False
        return first

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """The recipe in force."""
        return get_default_fp8_recipe() if cls.FP8_RECIPE is None else cls.FP8_RECIPE

    @classmethod
    def get_fp8_group(cls) -> Group:
        """The processes that share largest magnitudes."""
        return cls.FP8_DISTRIBUTED_GROUP

    @classmethod
    def get_autocast_state(cls) -> State:
        """What an autocast changes."""
        return (
            cls.FP8_ENABLED,
            cls.FP8_CALIBRATION,
            cls.FP8_RECIPE,
            cls.FP8_DISTRIBUTED_GROUP,
            cls.IS_FIRST_FP8_MODULE,
            cls.FP8_GRAPH_CAPTURING,
        )

    @classmethod
    def set_autocast_state(cls, fp8_state: State) -> None:
        """Set what an autocast changes."""
        (
            cls.FP8_ENABLED,
            cls.FP8_CALIBRATION,
            cls.FP8_RECIPE,
            cls.FP8_DISTRIBUTED_GROUP,
            cls.IS_FIRST_FP8_MODULE,
            cls.FP8_GRAPH_CAPTURING,
        ) = fp8_state

    @staticmethod
    def reduce_tensor_across_group_op_max(tensor: torch.Tensor, group: Group) -> None:
        """The maximum over all processes of a group, in place."""
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(
                tensor, op=torch.distributed.ReduceOp.MAX, group=group, async_op=False
            )

    @classmethod
    def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
        """Update every module's forward or backward scales; delayed scaling only."""
        for key, amaxes in cls.global_amax_buffer.items():
            is_forward, autocast_key = cls.split_key_in_buffer(key)
            if is_forward == forward and amaxes:
                cls._update(key, amaxes, *cls.autocast_arguments[autocast_key], forward)

    @classmethod
    def _update(
        cls, key: str, amaxes: list[torch.Tensor], recipe: Any, group: Group, forward: bool
    ) -> None:
        whole = torch.cat(amaxes)
        distributed = torch.distributed.is_initialized() and recipe.reduce_amax
        if distributed and torch.distributed.get_world_size(group=group) > 1:
            cls.reduce_tensor_across_group_op_max(whole, group)
        histories, scales = cls.global_amax_history_buffer[key], cls.global_scale_buffer[key]
        own_functions = callable(recipe.amax_compute_algo) or callable(
            recipe.scaling_factor_compute_algo
        )
        if not own_functions and not int(os.getenv("NVTE_UNFUSED_FP8_UPDATE", "0")):
            fused_amax_and_scale_update_after_reduction(
                whole,
                histories,
                scales,
                recipe.amax_compute_algo,
                get_fp8_te_dtype(recipe, forward),
                recipe.margin,
            )
            return
        split_and_copy(whole, amaxes, [amax.numel() for amax in amaxes])
        for history, scale in zip(histories, scales, strict=True):
            _amax_and_scale_update(history, scale, get_fp8_max(recipe, forward), recipe)

    @classmethod
    def get_unique_autocast_key(cls, recipe: Recipe | None = None, group: Group = None) -> str:
        """One key for each pair of a recipe and a group, within this process."""
        return f"{recipe}:{hash(group)}"

    @classmethod
    def autocast_enter(
        cls,
        enabled: bool = False,
        calibrating: bool = False,
        fp8_recipe: Recipe | None = None,
        fp8_group: Group = None,
        _graph: bool = False,
    ) -> None:
        """Begin an autocast.

        :raises AssertionError: the device cannot follow the recipe.
        """
        recipe = get_default_fp8_recipe() if fp8_recipe is None else fp8_recipe
        key = cls.get_unique_autocast_key(recipe, fp8_group)
        cls.autocast_arguments[key] = (recipe, fp8_group)
        first = cls.AUTOCAST_DEPTH == 0 or cls.IS_FIRST_FP8_MODULE
        cls.set_autocast_state((enabled, calibrating, recipe, fp8_group, first, _graph))
        cls.AUTOCAST_DEPTH += 1
        if enabled:
            supported, reason = check_fp8_support()
            assert supported, reason
            check_recipe_support(recipe)

    @classmethod
    def autocast_exit(cls, enabled: bool, _graph: bool) -> None:
        """End an autocast; after the outermost one the forward scales are updated."""
        cls.AUTOCAST_DEPTH -= 1
        if enabled and cls.AUTOCAST_DEPTH == 0 and not _graph and torch.is_grad_enabled():
            cls.reduce_and_update_fp8_tensors(forward=True)

    @classmethod
    def copy_forward_fp8_meta_tensors_for_recompute(cls, fp8_meta: dict[str, Any]) -> None:
        """Remember the scales of this forward pass for its repetition; delayed scaling only."""
        if not fp8_meta["recipe"].delayed():
            return
        state = fp8_meta["scaling_fwd"]
        if _POSITION not in fp8_meta:
            fp8_meta[_POSITION] = len(cls.fp8_tensors_recompute_buffer)
            cls.fp8_tensors_recompute_buffer.append(deque())
        queue = cls.fp8_tensors_recompute_buffer[fp8_meta[_POSITION]]
        queue.append([state.amax_history.clone(), state.scale.clone()])

    @classmethod
    def get_old_fp8_meta_tensors_for_recompute(cls, fp8_meta: dict[str, Any]) -> None:
        """Go back to the scales of the forward pass that is repeated; delayed scaling only."""
        if not fp8_meta["recipe"].delayed():
            return
        state = fp8_meta["scaling_fwd"]
        fp8_meta["updated_amax_history_fwd"] = state.amax_history.clone()
        fp8_meta["updated_scale_fwd"] = state.scale.clone()
        history, scale = cls.fp8_tensors_recompute_buffer[fp8_meta[_POSITION]].popleft()
        state.amax_history.copy_(history)
        state.scale.copy_(scale)

    @staticmethod
    def restore_fp8_meta_tensors(fp8_meta: dict[str, Any]) -> None:
        """Return to the latest scales after the repetition; delayed scaling only."""
        if fp8_meta["recipe"].delayed():
            fp8_meta["scaling_fwd"].amax_history.copy_(fp8_meta["updated_amax_history_fwd"])
            fp8_meta["scaling_fwd"].scale.copy_(fp8_meta["updated_scale_fwd"])


FP8GlobalStateManager.reset()
