"""An operation's quantizers, and the state of the recipe that they belong to."""

from __future__ import annotations

from typing import Any

import torch

from ..quantization import FP8GlobalStateManager, Recipe, RecipeState
from ..quantized_tensor import Quantizer

_MODES = ("forward", "backward")


def _key(mode: str) -> str:
    """The recipe state's name in ``fp8_meta``."""
    key: str = FP8GlobalStateManager.get_meta_tensor_key(forward=mode == "forward")
    return key


class QuantizerState(torch.nn.Module):
    """A module with quantizers for its forward and its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._fp8_metas: dict[str, Any] | None = None
        self._quantizers: dict[str, list[Quantizer]] | None = None

    def num_quantizers(self, mode: str) -> int:
        """How many tensors are quantized in ``mode`` (``forward`` or ``backward``)."""
        return 0

    def get_quantizer(self, mode: str, index: int) -> Quantizer | None:
        """A quantizer of ``mode``; None outside of a recipe."""
        return None if self._quantizers is None else self._quantizers[mode][index]

    def reset_recipe_state(self, *, recipe: Recipe | None) -> None:
        """Make or update the quantizers for ``recipe``; None removes them.

        :raises NotImplementedError: block scaling.
        """
        if recipe is None:
            self._fp8_metas = self._quantizers = None
            return
        if self._is_of(recipe):
            self._update(recipe)
        else:
            self._make(recipe)
        if FP8GlobalStateManager.is_fp8_enabled():
            self._share_amaxes()

    def _is_of(self, recipe: Recipe) -> bool:
        """Whether the present quantizers belong to a recipe of this kind."""
        if self._fp8_metas is None or self._quantizers is None:
            return False
        metas = [(mode, meta) for mode, meta in self._fp8_metas.items() if meta is not None]
        return all(isinstance(recipe, type(meta[_key(mode)].recipe)) for mode, meta in metas)

    def _make(self, recipe: Recipe) -> None:
        self._fp8_metas = dict.fromkeys(_MODES)
        self._quantizers = {mode: [] for mode in _MODES}
        for mode in _MODES:
            count = self.num_quantizers(mode)
            if not count:
                continue
            if recipe.float8_block_scaling():
                raise NotImplementedError(
                    "Fusible operations do not support FP8 block scaling recipe"
                )
            state = RecipeState.create(recipe, mode=mode, num_quantizers=count)
            group = FP8GlobalStateManager.get_fp8_group()
            self._fp8_metas[mode] = {_key(mode): state, "recipe": recipe, "fp8_group": group}
            self._quantizers[mode] = state.make_quantizers()

    def _update(self, recipe: Any) -> None:
        assert self._fp8_metas is not None
        for mode, meta in self._fp8_metas.items():
            if meta is None:
                continue
            meta["recipe"] = recipe
            meta["fp8_group"] = FP8GlobalStateManager.get_fp8_group()
            if recipe.delayed():
                self._resize_history(mode, recipe.amax_history_len)

    @torch.no_grad()
    def _resize_history(self, mode: str, length: int) -> None:
        """Keep the newest ``length`` entries of the amax history, or add zeros."""
        assert self._fp8_metas is not None
        assert self._quantizers is not None
        meta = self._fp8_metas[mode]
        state = meta[_key(mode)]
        history = state.amax_history
        if length < history.size(0):
            state.amax_history = history[:length].clone()
        elif length > history.size(0):
            padding = (0, 0, 0, length - history.size(0))
            state.amax_history = torch.nn.functional.pad(history, padding)
        # They hold rows of the history.
        self._quantizers[mode] = state.make_quantizers()
        place = meta.get(FP8GlobalStateManager.get_buffer_info())
        if place is None:
            return
        position, key = place
        if key in FP8GlobalStateManager.global_amax_buffer:
            FP8GlobalStateManager.global_amax_buffer[key][position] = state.amax_history[0]
            FP8GlobalStateManager.global_amax_history_buffer[key][position] = state.amax_history

    def _share_amaxes(self) -> None:
        """Let the ranks' common update of scales reach this module."""
        assert self._fp8_metas is not None
        if FP8GlobalStateManager.fp8_graph_capturing():
            return
        for meta in self._fp8_metas.values():
            if meta is not None:
                FP8GlobalStateManager.add_fp8_tensors_to_global_buffer(meta)

    @torch.no_grad()
    def _save_fp8_metas(self) -> dict[str, Any] | None:
        """Copies of the scales and amax histories, by mode; None outside of a recipe."""
        if self._fp8_metas is None:
            return None
        return {
            mode: {
                _key(mode): (meta[_key(mode)].scale.clone(), meta[_key(mode)].amax_history.clone())
            }
            for mode, meta in self._fp8_metas.items()
            if meta is not None
        }

    @torch.no_grad()
    def _load_fp8_metas(self, fp8_metas: dict[str, Any] | None) -> None:
        """Restore what :meth:`_save_fp8_metas` returned.

        :raises AssertionError: it does not fit the present quantizers.
        """
        present = self._fp8_metas
        assert (present is None) == (fp8_metas is None), (
            "Saved FP8 metadata does not match operation's FP8 metadata"
        )
        for mode, meta in (fp8_metas or {}).items():
            for key, (scale, amax_history) in meta.items():
                known = present is not None and key in (present.get(mode) or ())
                assert known, f"Found an unexpected key ({mode=}, {key=}) in saved FP8 metadata"
                assert present is not None
                present[mode][key].scale.copy_(scale)
                present[mode][key].amax_history.copy_(amax_history)
