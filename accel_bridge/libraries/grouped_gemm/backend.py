"""GEMMs of the experts without gradients.

Legend: t tokens, e experts, k input size, m output size.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn.functional import pad

from accel_bridge.kernels import GROUPED_MATMUL
from accel_bridge.kernels.active import kernel


@torch.no_grad()
def gmm(
    a: torch.Tensor,
    b: torch.Tensor,
    batch_sizes: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    c: torch.Tensor | None = None,
) -> torch.Tensor:
    """The GEMM of every expert's rows; with ``trans_a`` the gradient of its weights.

    :param a: [t, k], rows sorted by expert.
    :param b: [e, k, m], [e, m, k] with ``trans_b``, or [t, m] with ``trans_a``.
    :param batch_sizes: [e], tokens of every expert.
    :param c: where to write the result.
    :returns: [t, m], or [e, k, m] with ``trans_a``.
    """
    assert not (trans_a and trans_b)
    if trans_a:
        ends = pairwise(pad(batch_sizes.cumsum(0), (1, 0)).tolist())
        found = torch.stack([a[start:stop].T @ b[start:stop] for start, stop in ends])
    else:
        found = kernel(GROUPED_MATMUL)(a, b.transpose(1, 2) if trans_b else b, batch_sizes)
    return found if c is None else c.copy_(found)
