"""Shim for Dao-AILab's fast_hadamard_transform.

DeepSeek's sparse attention transforms the queries and keys of its indexer with it. Being linear, it
needs no contract: additions of the backend's own tensors compute it, and their gradients too.
"""

from __future__ import annotations

import torch

from accel_bridge.libraries._library import LIBRARIES

__version__ = LIBRARIES["fast_hadamard_transform"].version


def hadamard_transform(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """``scale * x @ H``, where H is Sylvester's Hadamard matrix, in float32, rounded once.

    :param x: [..., dim], of a floating dtype. Zeros extend dim to the next power of two, and the
        result has the first dim of its columns.
    :returns: as ``x``.
    """
    size = x.shape[-1]
    whole = 1 << (size - 1).bit_length()
    output = torch.nn.functional.pad(x.float(), (0, whole - size))
    half = 1
    while half < whole:
        pairs = output.view(*x.shape[:-1], whole // (2 * half), 2, half)
        left, right = pairs.unbind(-2)
        output = torch.stack((left + right, left - right), -2).reshape(*x.shape[:-1], whole)
        half *= 2
    return (output[..., :size] * scale).to(x.dtype)
