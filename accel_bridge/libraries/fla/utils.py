"""Settings that callers read."""

from __future__ import annotations

from typing import Final

#: Whether kernels are tuned inside CUDA graphs; nothing is tuned here.
USE_CUDA_GRAPH: Final = False
