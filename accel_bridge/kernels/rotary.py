"""Contract ``rotary``: rotary position embedding of the first dimensions of each head.

Legend: ... any leading dimensions, d head size, r rotated size (even, r <= d).
"""

from __future__ import annotations

import torch

from accel_bridge.kernels._contract import Contract


def rotary_reference(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """``x * cos + rotate(x) * sin`` on the first r of d dimensions; the others pass unchanged.

    ``rotate`` pairs dimension i with ``i + r/2`` (half): ``(x1, x2) -> (-x2, x1)``; or, when
    ``interleaved``, 2i with 2i + 1. cos and sin repeat their angles the same way. As in Megatron,
    cos and sin are rounded to the input's dtype and the products computed in it.

    :param input: [..., d], any float dtype.
    :param cos: [..., r], broadcastable to ``input[..., :r]``; any scaling is already in it.
    :param sin: as cos.
    :param interleaved: which dimensions are a pair, see above.
    :returns: [..., d] in the input's dtype.
    :raises ValueError: r odd or larger than d.
    """
    size = cos.shape[-1]
    if size % 2 or size > input.shape[-1]:
        raise ValueError(f"rotary size {size} must be even and at most {input.shape[-1]}")
    x, rest = input[..., :size], input[..., size:]
    if interleaved:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        rotated = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), dim=-1)
    output = x * cos.to(input.dtype) + rotated * sin.to(input.dtype)
    return torch.cat((output, rest), dim=-1) if rest.shape[-1] else output


ROTARY = Contract(
    name="rotary",
    reference=rotary_reference,
    formula="x * cos(m theta) + rotate(x) * sin(m theta)",
    source="Su et al. 2021, arXiv:2104.09864; semantics of Megatron's apply_rotary_pos_emb",
)
