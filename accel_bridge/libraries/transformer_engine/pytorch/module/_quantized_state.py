"""A module's FP8 state: recipe, quantizers, scales, their place in checkpoints, cached weights.

Source of the semantics: transformer_engine/pytorch/module/base.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from ...common.recipe import DelayedScaling, Recipe
from ..quantization import FP8GlobalStateManager, RecipeState
from ..quantized_tensor import QuantizedTensor, QuantizedTensorStorage, Quantizer
from . import _extra_state

_DIRECTIONS: Final = ("scaling_fwd", "scaling_bwd")
#: Values of ``fp8_meta`` that belong into a checkpoint.
_PLAIN: Final = (bool, int, float, str, tuple, list)


class QuantizedState(torch.nn.Module):
    """What every module keeps for FP8; inert without an FP8 context."""

    def __init__(self) -> None:
        super().__init__()
        self.fp8_initialized = False
        self.fp8 = False
        self.fp8_calibration = False
        self.fp8_parameters = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "fp8_group": None}
        self.fp8_meta_tensors_initialized = False
        self.quantizers: dict[str, Any] = {direction: {} for direction in _DIRECTIONS}
        self.primary_weights_in_fp8: bool = FP8GlobalStateManager.with_fp8_parameters()
        self.preserve_high_precision_init_val: bool = (
            FP8GlobalStateManager.with_high_precision_init_val()
        )
        self._fp8_workspaces: dict[str, Any] = {}

    # Weights

    def _get_weight_tensors(self) -> list[torch.Tensor]:
        raise NotImplementedError(f"{type(self).__name__} has no weights")

    def _get_weight_quantizers(self) -> Sequence[Quantizer | None]:
        raise NotImplementedError(f"{type(self).__name__} has no weight quantizers")

    def _update_weight_quantizers(self) -> None:
        """Give FP8 weights the quantizers of the current recipe."""
        pairs = zip(self._get_weight_tensors(), self._get_weight_quantizers(), strict=True)
        for weight, quantizer in pairs:
            if quantizer is not None and isinstance(weight, QuantizedTensorStorage):
                weight.update_quantizer(quantizer)

    def _get_fp8_params(self) -> list[torch.Tensor] | None:
        found: list[torch.Tensor] = [
            parameter
            for parameter in self.parameters(recurse=False)
            if isinstance(parameter, QuantizedTensor) and parameter.requires_grad
        ]
        return found or None

    def get_weight_workspace(
        self,
        *,
        tensor: Any = None,
        quantizer: Quantizer | None = None,
        cache_name: str | None = None,
        update_workspace: bool = True,
        skip_update_flag: torch.Tensor | None = None,
        fsdp_group: Any = None,
        workspace_dtype: torch.dtype | None = None,
    ) -> Any:
        """The weight in FP8: itself, a cached copy, or a new one.

        :param tensor: the weight.
        :param cache_name: key under which the copy is kept between microbatches, or None.
        :param update_workspace: write the weight's values into a cached copy.
        :param skip_update_flag: on the device, one element; where it is not zero the copy keeps
            its values (captured graphs); takes precedence over ``update_workspace``.
        :raises ValueError: a copy is to be made without tensor and quantizer.
        """
        if isinstance(tensor, QuantizedTensor):
            assert quantizer is not None
            weight: Any = tensor
            weight.update_usage(
                rowwise_usage=True if quantizer.rowwise_usage else None,
                columnwise_usage=True if quantizer.columnwise_usage else None,
            )
            return tensor
        cached = None if cache_name is None else self._fp8_workspaces.get(cache_name)
        if cached is not None and quantizer is not None and _lacks_a_usage(cached, quantizer):
            cached = None
        if cached is None:
            if tensor is None or quantizer is None:
                raise ValueError(
                    "tensor and quantizer kwargs must be provided to construct FP8 workspace"
                )
            internal = quantizer.internal
            # Saving a storage for the backward pass takes its data away; a cached copy keeps it.
            quantizer.internal = internal and cache_name is None
            made = quantizer.quantize(tensor, dtype=workspace_dtype)
            quantizer.internal = internal
            if cache_name is not None:
                self._fp8_workspaces[cache_name] = made
            return made
        if update_workspace or skip_update_flag is not None:
            if tensor is None:
                raise ValueError("tensor kwarg must be provided to update FP8 workspace")
            cached.quantize_(tensor, noop_flag=skip_update_flag)
        return cached

    # Scales

    def adjust_amax_history_length(self, length: int, fwd: bool | None = None) -> None:
        """Delayed scaling: cut or extend the history; its memory moves.

        :param fwd: only that direction; None for both.
        """
        directions = _DIRECTIONS if fwd is None else (_DIRECTIONS[0 if fwd else 1],)
        for direction in directions:
            state = self.fp8_meta.get(direction)
            if state is None or state.amax_history.shape[0] == length:
                continue
            history = state.amax_history
            if length < history.shape[0]:
                state.amax_history = history[:length].clone()
            else:
                extra = length - history.shape[0]
                state.amax_history = functional.pad(history, pad=(0, 0, 0, extra))
            self.quantizers[direction] = state.make_quantizers()
            self._update_weight_quantizers()
            self._register_history(direction, state.amax_history)

    def _register_history(self, direction: str, history: torch.Tensor) -> None:
        """Put a moved history into the buffers from which all scales are updated."""
        place = self.fp8_meta.get(FP8GlobalStateManager.get_buffer_info())
        if place is None:
            return
        position, key = place[:2] if direction == _DIRECTIONS[0] else place[2:]
        if key in FP8GlobalStateManager.global_amax_buffer:
            FP8GlobalStateManager.global_amax_buffer[key][position] = history[0]
            FP8GlobalStateManager.global_amax_history_buffer[key][position] = history

    def set_meta_tensor(self, fwd: bool, recipe: Any) -> None:
        """Make the recipe's state for one direction; a state of the same kind stays."""
        direction = _DIRECTIONS[0 if fwd else 1]
        if self.fp8_meta_tensors_initialized:
            state = self.fp8_meta[direction]
            if recipe.delayed() and hasattr(state, "amax_history"):
                self.adjust_amax_history_length(recipe.amax_history_len, fwd=fwd)
                return
            # A custom recipe's quantizers come from a function that may have changed.
            if type(state) is _state_class(recipe) and not (recipe.delayed() or recipe.custom()):
                return
        per_product = 3 if fwd else 2
        made = RecipeState.create(
            recipe,
            mode="forward" if fwd else "backward",
            num_quantizers=self.fp8_meta["num_gemms"] * per_product,
        )
        self.fp8_meta[direction] = made
        self.quantizers[direction] = made.make_quantizers()

    def init_fp8_meta_tensors(self, recipe: Recipe) -> None:
        """Make the recipe's state for both directions."""
        self.set_meta_tensor(True, recipe)
        self.set_meta_tensor(False, recipe)
        self.__dict__["fp8_meta_tensors_initialized"] = True

    def get_fp8_meta_tensors(self) -> dict[str, list[torch.Tensor]] | None:
        """Copies of scales and histories by direction; None before the first FP8 pass."""
        if any(direction not in self.fp8_meta for direction in _DIRECTIONS):
            return None
        with torch.no_grad():
            return {
                direction: [
                    self.fp8_meta[direction].scale.clone(),
                    self.fp8_meta[direction].amax_history.clone(),
                ]
                for direction in _DIRECTIONS
            }

    def reset_fp8_meta_tensors(
        self, fp8_meta_tensors: dict[str, list[torch.Tensor]] | None = None
    ) -> None:
        """Set scales and histories to those given, or to their first values."""
        with torch.no_grad():
            for direction in _DIRECTIONS:
                state = self.fp8_meta.get(direction)
                if state is None:
                    continue
                if fp8_meta_tensors is None:
                    state.scale.fill_(1)
                    state.amax_history.zero_()
                else:
                    assert direction in fp8_meta_tensors, "Cannot reset fp8 tensors."
                    state.scale.copy_(fp8_meta_tensors[direction][0])
                    state.amax_history.copy_(fp8_meta_tensors[direction][1])

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Read the FP8 context, and make the state that its recipe needs."""
        own = self.__dict__
        meta = self.fp8_meta
        enabled = own["fp8"] = FP8GlobalStateManager.is_fp8_enabled()
        calibrates = own["fp8_calibration"] = FP8GlobalStateManager.is_fp8_calibration()
        with_parameters = own["fp8_parameters"] = FP8GlobalStateManager.with_fp8_parameters()
        meta["fp8_checkpoint"] = enabled or calibrates
        if not (with_parameters or enabled or calibrates):
            own["fp8_initialized"] = False
            return
        before = meta.get("recipe")
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        if self.fp8_initialized and (recipe is before or recipe == before):
            return
        meta["recipe"] = recipe
        meta["num_gemms"] = num_gemms
        if enabled or calibrates:
            meta["fp8_group"] = FP8GlobalStateManager.get_fp8_group()
            if hasattr(recipe, "fp8_format"):
                meta["fp8_max_fwd"] = recipe.fp8_format.value.max_fwd
                meta["fp8_max_bwd"] = recipe.fp8_format.value.max_bwd
            self.init_fp8_meta_tensors(recipe)
            own["fp8_initialized"] = True
        elif not self.fp8_initialized:
            self.init_fp8_meta_tensors(recipe)
        if before is not None and not (
            isinstance(recipe, type(before)) or isinstance(before, type(recipe))
        ):
            warnings.warn(
                f"Recipe type changed from {type(before).__name__} to {type(recipe).__name__}. "
                "This may affect model behavior.",
                stacklevel=3,
            )
            self._fp8_workspaces.clear()

    def _check_weight_tensor_recipe_correspondence(self) -> None:
        """:raises RuntimeError: FP8 weights are of another recipe's kind."""
        if not self.primary_weights_in_fp8 or not (self.fp8 or self.fp8_calibration):
            return
        recipe = self.fp8_meta["recipe"]
        for name in getattr(self, "weight_names", ()):
            weight = getattr(self, name)
            quantizer = (
                weight._get_quantizer() if isinstance(weight, QuantizedTensorStorage) else None
            )
            wanted = None if quantizer is None else quantizer._get_compatible_recipe()
            if wanted is not None and not isinstance(recipe, wanted):
                raise RuntimeError(
                    f"Recipe mismatch for '{name}': tensor supports recipe {wanted.__name__}, but "
                    f"got {type(recipe).__name__}. Please check the recipes assigned during "
                    "quantized_model_init() and autocast() calls."
                )

    # Checkpoints

    def get_extra_state(self) -> torch.Tensor:
        """Recipe, scales and histories as a uint8 tensor; empty without FP8."""
        if not (self.fp8_meta["fp8_checkpoint"] or self.fp8 or self.fp8_calibration):
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        recipe = self.fp8_meta["recipe"]
        state: dict[str, Any] = {"recipe": recipe}
        if recipe.delayed():
            for direction in _DIRECTIONS:
                suffix = direction.removeprefix("scaling")
                tensors = self.fp8_meta[direction]
                state[f"scale{suffix}"] = tensors.scale.detach().cpu()
                state[f"amax_history{suffix}"] = tensors.amax_history.detach().cpu()
        place = FP8GlobalStateManager.get_buffer_info()
        state["extra_fp8_variables"] = {
            key: value
            for key, value in self.fp8_meta.items()
            if key != place and isinstance(value, _PLAIN)
        }
        return _extra_state.encode(state)

    def set_extra_state(self, state: torch.Tensor | io.BytesIO | None) -> None:
        """Load what :meth:`get_extra_state` returned.

        :raises accel_bridge.BridgeError: a pickle of classes that are not known.
        """
        loaded = _extra_state.decode(state)
        if loaded is None:
            return
        # Transformer Engine before 2.0 knew one recipe, and stored the inverse scales as well.
        recipe = loaded["recipe"] if "recipe" in loaded else DelayedScaling()
        self.fp8_meta.update(loaded["extra_fp8_variables"])
        self.fp8_meta["recipe"] = recipe
        self.fp8_meta.pop("global_fp8_buffer_pos_fwd_recompute", None)
        self.init_fp8_meta_tensors(recipe)
        if not recipe.delayed():
            return
        for direction in _DIRECTIONS:
            suffix = direction.removeprefix("scaling")
            for name in ("scale", "amax_history"):
                getattr(self.fp8_meta[direction], name).copy_(loaded[f"{name}{suffix}"])

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """The scales come first: values are copied into FP8 weights with them."""
        key = f"{prefix}_extra_state"
        if self.primary_weights_in_fp8 and key in state_dict:
            self.set_extra_state(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args)


def _state_class(recipe: Recipe) -> type:
    """The class of states that ``recipe`` asks for."""
    # Making a state without quantizers costs next to nothing.
    return type(RecipeState.create(recipe, mode="forward", num_quantizers=0))


def _lacks_a_usage(cached: Any, quantizer: Quantizer) -> bool:
    """Whether a cached weight was made without the data that the quantizer is asked for."""
    usages = cached.get_usages()
    return (quantizer.rowwise_usage and not usages["rowwise"]) or (
        quantizer.columnwise_usage and not usages["columnwise"]
    )
