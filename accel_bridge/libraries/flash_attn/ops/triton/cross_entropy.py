"""flash-attn's cross-entropy on the active backend's kernel."""

from __future__ import annotations

import torch
import torch.distributed as dist

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import CROSS_ENTROPY, group_size
from accel_bridge.kernels.active import kernel

__all__ = ["cross_entropy_loss"]


def cross_entropy_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    precomputed_lse: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of every row, and the part of it that is ``lse_square_scale * lse ** 2``.

    :param logits: [rows, v], or this rank's part of the vocabulary with ``process_group``.
    :param labels: int64 [rows]; rows of ``ignore_index`` lose nothing.
    :param inplace_backward: a hint to save memory; the result is the same.
    :returns: float32 [rows], twice.
    :raises BridgeError: a squared log-sum-exp over a split vocabulary.
    """
    ranks = group_size(process_group)
    if lse_square_scale and ranks > 1:
        raise BridgeError(
            "A loss on the squared log-sum-exp cannot be combined with a split vocabulary.",
            evidence=f"lse_square_scale {lse_square_scale}, {ranks} ranks",
            next="use lse_square_scale=0.0",
        )
    ignored = labels == ignore_index
    scaled = logits if logit_scale == 1.0 else logits * logit_scale
    vocabulary = logits.shape[-1] * ranks
    # The contract gives every wrong class an equal share; flash-attn counts the right one too.
    smoothing = label_smoothing * (vocabulary - 1) / vocabulary
    losses = kernel(CROSS_ENTROPY)(
        scaled,
        labels.masked_fill(ignored, 0),
        group=process_group if ranks > 1 else None,
        label_smoothing=smoothing,
    ).float()
    squares = torch.zeros_like(losses)
    if lse_square_scale:
        lse = precomputed_lse
        lse = scaled.float().logsumexp(-1) if lse is None else lse
        squares = lse_square_scale * lse.square()
    squares = squares.masked_fill(ignored, 0.0)
    return losses.masked_fill(ignored, 0.0) + squares, squares.detach()
