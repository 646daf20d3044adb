"""Memory layouts of attention's tensors.

Legend: b batch, s sequence (sq of queries, sk of keys), n heads (g of keys and values), d head
dimension, h = n * d, t tokens of all packed sequences.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch

#: SBH [s, b, h]; BSH [b, s, h]; SBHD [s, b, n, d]; BSHD [b, s, n, d]; BNSD [b, n, s, d];
#: TND [t, n, d] with cumulative sequence lengths.
Layout = Literal["SBH", "BSH", "SBHD", "BSHD", "BNSD", "TND"]

LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
#: Dimensions that turn a four-dimensional layout into b, n, s, d, and back.
_TO_BNSD: Final = {"SBHD": (1, 2, 0, 3), "BSHD": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
_FROM_BNSD: Final = {"SBHD": (2, 0, 1, 3), "BSHD": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}


def to_bnsd(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    heads: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of query [b, n, sq, d], key [b, g, sk, d] and value [b, g, sk, dv]; copies nothing.

    :param heads: number of query heads, needed for SBH and BSH, which have no heads dimension.
    :raises ValueError: for TND, for missing ``heads``, or for sizes that do not divide.
    """
    if layout in ("SBH", "BSH"):
        if heads is None or query.shape[-1] % heads:
            raise ValueError(f"layout {layout} of {list(query.shape)} needs heads, not {heads}")
        head_dim = query.shape[-1] // heads
        if key.shape[-1] % head_dim:
            raise ValueError(f"key width {key.shape[-1]} is not a multiple of head size {head_dim}")
        kv_heads = key.shape[-1] // head_dim
        query = torch.unflatten(query, -1, (heads, head_dim))
        key = torch.unflatten(key, -1, (kv_heads, head_dim))
        value = torch.unflatten(value, -1, (kv_heads, -1))
        layout = "SBHD" if layout == "SBH" else "BSHD"
    if layout not in _TO_BNSD:
        raise ValueError(f"layout {layout} has no batch dimension")
    order = _TO_BNSD[layout]
    return query.permute(order), key.permute(order), value.permute(order)


def from_bnsd(output: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Attention's output [b, n, sq, dv] in ``layout``; SBH and BSH copy when they must."""
    if layout in ("SBH", "BSH"):
        return output.permute(_FROM_BNSD["SBHD" if layout == "SBH" else "BSHD"]).flatten(-2)
    return output.permute(_FROM_BNSD[layout])
