"""flash-attn's cross-entropy as a module."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..ops.triton.cross_entropy import cross_entropy_loss


class CrossEntropyLoss(torch.nn.Module):
    """Cross-entropy of rows, reduced.

    :param ignore_index: rows of this label lose nothing, and do not count in the mean.
    :param reduction: ``mean``, ``sum`` or ``none``.
    :param return_z_loss: also return the part that is ``lse_square_scale * lse ** 2``. The other
        parameters are those of :func:`~..ops.triton.cross_entropy.cross_entropy_loss`.
    :raises NotImplementedError: another reduction.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: dist.ProcessGroup | None = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.logit_scale = logit_scale
        self.lse_square_scale = lse_square_scale
        self.inplace_backward = inplace_backward
        self.process_group = process_group
        self.return_z_loss = return_z_loss

    def forward(
        self,
        input: torch.Tensor,
        target: torch.Tensor,
        precomputed_lse: torch.Tensor | None = None,
    ) -> Any:
        """Loss of input [rows, v] and labels [rows]: float32 [rows] or a scalar."""
        parts = cross_entropy_loss(
            input,
            target,
            precomputed_lse,
            self.label_smoothing,
            self.logit_scale,
            self.lse_square_scale,
            self.ignore_index,
            self.inplace_backward,
            self.process_group,
        )
        if self.reduction != "none":
            count = (target != self.ignore_index).sum() if self.reduction == "mean" else 1
            parts = parts[0].sum() / count, parts[1].sum() / count
        return parts if self.return_z_loss else parts[0]
