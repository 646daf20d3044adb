"""Triton kernels. Importing any module of this package imports Triton: ask ``missing()`` first.

Each module holds the kernels of one contract and the autograd function around them.
``accel_bridge.backends.cuda.kernels`` decides when to use them.
"""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def missing() -> str | None:
    """Why Triton cannot be used here, or None; looks without importing it."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (it comes with PyTorch's CUDA build for Linux)"
    return None
