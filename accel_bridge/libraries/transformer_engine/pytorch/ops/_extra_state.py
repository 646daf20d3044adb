"""An operation's extra state in checkpoints, as Transformer Engine writes it."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..module._extra_state import decode, encode
from ..quantization import autocast

#: Per mode: the recipe state's name in ``fp8_meta``, and its tensors' suffix in the checkpoint.
_NAMES: Final = {"forward": ("scaling_fwd", "fwd"), "backward": ("scaling_bwd", "bwd")}
_TENSORS: Final = ("scale", "amax_history")
_PLAIN: Final = (bool, int, float, str, tuple, list)
#: Entries of ``fp8_meta`` that only mean something in the process that wrote them.
_LOCAL: Final = ("buffer_index_and_autocast_key", "global_fp8_buffer_pos_fwd_recompute")


def pack_extra_state(fp8_metas: dict[str, Any] | None) -> torch.Tensor:
    """The state as a tensor of bytes on the host; empty without quantizers."""
    state: dict[str, dict[str, Any]] = {}
    for mode, (key, suffix) in _NAMES.items():
        meta = None if fp8_metas is None else fp8_metas[mode]
        if meta is None:
            continue
        entry: dict[str, Any] = {"recipe": meta["recipe"]}
        if meta["recipe"].delayed():
            for name in _TENSORS:
                entry[f"{name}_{suffix}"] = getattr(meta[key], name).cpu()
        entry["extra_fp8_variables"] = {
            name: value
            for name, value in meta.items()
            if isinstance(value, _PLAIN) and name not in _LOCAL
        }
        state[mode] = entry
    return encode(state) if state else torch.empty(0, dtype=torch.uint8)


def unpack_extra_state(op: Any, state: torch.Tensor | None) -> None:
    """Give ``op`` the quantizers that ``state`` describes.

    :param op: a ``QuantizerState``.
    :raises ExtraStateError: the state names a class that is neither a recipe nor a tensor's.
    """
    entries = decode(state) or {}
    for mode, (key, suffix) in _NAMES.items():
        entry = entries.get(mode)
        if entry is None:
            continue
        recipe = entry["recipe"]
        if op._fp8_metas is None or op._fp8_metas[mode] is None:
            with autocast(recipe=recipe):
                op.reset_recipe_state(recipe=recipe)
        meta = op._fp8_metas[mode]
        meta["recipe"] = recipe
        extras = entry["extra_fp8_variables"]
        meta.update({name: value for name, value in extras.items() if name not in _LOCAL})
        if recipe.delayed():
            for name in _TENSORS:
                _copy(entry[f"{name}_{suffix}"], getattr(meta[key], name))


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """In place, with the source's shape: quantizers hold views of the target."""
    if source.shape != target.shape:
        target.data = torch.empty(source.shape, dtype=target.dtype, device=target.device)
    target.copy_(source)
