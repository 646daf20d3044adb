"""What MultiheadAttention makes of its projections: parts by head, and their normalizations."""

from __future__ import annotations

from typing import Any

import torch

from ..module import LayerNorm, RMSNorm


def split_mixed(
    mixed: torch.Tensor, groups: int, repeats: int, size: int, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query [.., groups * repeats, size], key and value [.., groups, size] of one projection.

    :param interleaved: a group's queries stand beside its key and value.
    """
    if interleaved:
        parts = mixed.unflatten(-1, (groups, repeats + 2, size))
        split = torch.split(parts, [repeats, 1, 1], dim=-2)
    else:
        parts = mixed.unflatten(-1, (repeats + 2, groups, size))
        split = torch.split(parts, [repeats, 1, 1], dim=-3)
    query, key, value = (part.flatten(-3, -2) for part in split)
    return query, key, value


def split_key_value(
    mixed: torch.Tensor, groups: int, size: int, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value [.., groups, size] of one projection."""
    if interleaved:
        key, value = torch.split(mixed.unflatten(-1, (groups, 2 * size)), size, dim=-1)
    else:
        key, value = torch.split(mixed.unflatten(-1, (2 * groups, size)), groups, dim=-2)
    return key, value


def qk_norms(
    kind: str | None,
    size: int,
    eps: float,
    device: torch.device | str,
    seq_length: int | None,
    micro_batch_size: int | None,
) -> tuple[torch.nn.Module | None, torch.nn.Module | None]:
    """The normalizations of queries and keys.

    :raises ValueError: there is none of that name.
    """
    if kind is None:
        return None, None
    if kind == "L2Normalization":
        from ..ops import L2Normalization

        shared = L2Normalization(eps=eps, seq_length=seq_length, micro_batch_size=micro_batch_size)
        return shared, shared
    norms: dict[str, Any] = {"RMSNorm": RMSNorm, "LayerNorm": LayerNorm}
    if kind not in norms:
        raise ValueError(
            f"Unsupported QK norm type: {kind}. "
            f"Supported types: {['L2Normalization', 'RMSNorm', 'LayerNorm']}"
        )
    make = norms[kind]
    return make(normalized_shape=size, eps=eps, device=device), make(
        normalized_shape=size, eps=eps, device=device
    )
