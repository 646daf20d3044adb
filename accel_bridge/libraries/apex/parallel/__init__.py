"""Batch norm over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """torch's own, with Apex's options.

    :raises ValueError: ``channel_last`` or ``fuse_relu``.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        if channel_last or fuse_relu:
            raise ValueError("SyncBatchNorm has no channel_last and fuse_relu here: they are False")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, process_group)


__all__ = ["SyncBatchNorm"]
