"""The layout that the attention kernel is called in; a plugin's flags may choose it.

Legend: s sequence (sq queries, sk keys), b batch, n heads, g key and value heads, d head size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

import torch

from accel_bridge.kernels._layout import Layout
from accel_bridge.kernels.attention import AttentionOptions
from accel_bridge.kernels.context_parallel import Attend

#: Dimensions that turn [s, b, n, d] into a layout, before heads and their size are merged.
_FROM_SBHD: Final = {
    "SBHD": (0, 1, 2, 3),
    "SBH": (0, 1, 2, 3),
    "BSHD": (1, 0, 2, 3),
    "BSH": (1, 0, 2, 3),
    "BNSD": (1, 2, 0, 3),
}
#: Dimensions that turn a layout with separate heads back into [s, b, n, d].
_TO_SBHD: Final = {"SBHD": (0, 1, 2, 3), "BSHD": (1, 0, 2, 3), "BNSD": (2, 0, 1, 3)}


def attend_in(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """query [sq, b, n, d], key and value [sk, b, g, d] -> [sq, b, n * dv].

    :param options: hold the layout that the kernel is called in, and ``heads``.
    """
    sq, batch = query.shape[:2]
    layout = options.layout
    tensors = [part.permute(_FROM_SBHD[layout]) for part in (query, key, value)]
    if layout in ("SBH", "BSH"):
        # Contiguous, as the scripts' own layouts are: a view with gaps is not SBH.
        tensors = [part.flatten(-2).contiguous() for part in tensors]
    output = cast(torch.Tensor, kernel(tensors[0], tensors[1], tensors[2], options))
    if layout in ("SBH", "BSH"):
        return output if layout == "SBH" else output.transpose(0, 1)
    return output.permute(_TO_SBHD[layout]).reshape(sq, batch, -1)


def called_in(kernel: Attend, layout: Layout) -> Attend:
    """The kernel for tensors [s, b, n, d], called in another layout."""

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        heads = query.shape[2]
        chosen = replace(options, layout=layout, heads=heads)
        merged = attend_in(kernel, query, key, value, chosen)
        return merged.view(*merged.shape[:2], heads, -1)

    return attend
