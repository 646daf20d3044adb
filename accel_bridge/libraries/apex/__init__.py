"""Shim for NVIDIA's Apex: fused optimizers, norms and rotary embeddings.

``amp`` and ``contrib.nccl_allocator`` are absent. As in the real library there is no
``__version__``: every build of it is 0.1.
"""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

#: Packages that the real one has loaded, and that callers reach as its attributes.
SUBMODULES = (
    "contrib",
    "mlp",
    "multi_tensor_apply",
    "normalization",
    "optimizers",
    "parallel",
    "transformer",
)

__getattr__, __dir__ = lazy_package(__name__, {}, SUBMODULES)
