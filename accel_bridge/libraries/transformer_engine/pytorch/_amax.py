"""Delayed scaling's arithmetic: from a history of largest magnitudes to scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _update_amax_history(amax_history: torch.Tensor) -> torch.Tensor:
    """Move the history one step on and clear the entry of the next step, in place."""
    if amax_history.shape[0] > 1:
        amax_history.copy_(torch.roll(amax_history, -1, 0))
    amax_history[0].fill_(0.0)
    return amax_history


def _default_get_amax_and_update_history(
    amax_history: torch.Tensor, amax_compute_algo: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(history, amax): the largest of the history for ``max``, else its newest entry."""
    amax = amax_history.amax(0) if amax_compute_algo == "max" else amax_history[0].clone()
    return _update_amax_history(amax_history), amax


def _default_sf_compute(
    amax: torch.Tensor,
    scale: torch.Tensor,
    fp8_max: float,
    margin: int,
    _fp32_max: float = torch.finfo(torch.float32).max,
) -> torch.Tensor:
    """``fp8_max / amax / 2**margin`` into ``scale``.

    An amax of 0, infinity or NaN leaves the scale; one so small that the scale would be infinite
    gives the largest float32.
    """
    factor = (fp8_max / amax) / (2**margin)
    known = (amax > 0.0) & torch.isfinite(amax)
    scale.copy_(torch.where(known, factor.clamp(max=_fp32_max), scale))
    return scale


def _compute_amax_and_update_history(
    amax_history: torch.Tensor, amax_compute_algo: Callable[..., Any] | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(history, amax), by the recipe's function or name."""
    if isinstance(amax_compute_algo, str):
        return _default_get_amax_and_update_history(amax_history, amax_compute_algo)
    amax = amax_compute_algo(amax_history)
    return _update_amax_history(amax_history), amax


def _compute_scaling_factor(
    amax: torch.Tensor, scale: torch.Tensor, fp8_max: float, recipe: Any
) -> torch.Tensor:
    """The next scale, by the recipe's function or the default one."""
    if recipe.scaling_factor_compute_algo is None:
        return _default_sf_compute(amax, scale, fp8_max, recipe.margin)
    computed: torch.Tensor = recipe.scaling_factor_compute_algo(amax, scale, fp8_max, recipe)
    return computed


def _amax_and_scale_update(
    amax_history: torch.Tensor, scale: torch.Tensor, fp8_max: float, recipe: Any
) -> None:
    """Move the history on and compute the next scale, both in place."""
    history, amax = _compute_amax_and_update_history(amax_history, recipe.amax_compute_algo)
    factor = _compute_scaling_factor(amax, scale, fp8_max, recipe)
    scale.copy_(factor)
    amax_history.copy_(history)


def split_and_copy(
    buffer: torch.Tensor, outputs: list[torch.Tensor], chunk_sizes: Sequence[int]
) -> None:
    """Copy each part of ``buffer`` to its place."""
    torch._foreach_copy_(outputs, list(buffer.split(list(chunk_sizes))))
