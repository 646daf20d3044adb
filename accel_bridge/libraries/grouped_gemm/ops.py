"""One GEMM per expert.

Legend: t tokens, e experts, k input size, m output size.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels import GROUPED_MATMUL
from accel_bridge.kernels.active import kernel

from . import backend

__all__ = ["backend", "gmm"]


def gmm(
    a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_b: bool = False
) -> torch.Tensor:
    """The contract ``grouped_matmul``.

    :param a: [t, k], rows sorted by expert.
    :param b: [e, k, m], or [e, m, k] with ``trans_b``.
    :param batch_sizes: [e], tokens of every expert.
    :returns: [t, m].
    :raises AssertionError: no tokens at all.
    """
    if batch_sizes.device.type == "cpu":
        assert torch.count_nonzero(batch_sizes) != 0, "Input batch_sizes should not be all zeros!"
    return kernel(GROUPED_MATMUL)(a, b.transpose(1, 2) if trans_b else b, batch_sizes)
