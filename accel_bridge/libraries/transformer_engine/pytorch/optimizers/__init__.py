"""Optimizers that update all parameters at once, and their work on lists of tensors.

``multi_tensor_scale_tensor`` came with Transformer Engine 2.14; Megatron asks for it by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from accel_bridge.libraries.names import lazy_package

EXPORTS: Final[Mapping[str, Sequence[str]]] = {
    "fused_adam": ("FusedAdam",),
    "fused_sgd": ("FusedSGD",),
    "multi_tensor_apply": ("MultiTensorApply", "multi_tensor_applier"),
    "multi_tensor": (
        "multi_tensor_adam",
        "multi_tensor_adam_capturable",
        "multi_tensor_adam_capturable_master",
        "multi_tensor_adam_fp8",
        "multi_tensor_adam_param_remainder",
        "multi_tensor_l2norm",
        "multi_tensor_scale",
        "multi_tensor_scale_tensor",
        "multi_tensor_sgd",
        "multi_tensor_unscale_l2norm",
    ),
}

__getattr__, __dir__ = lazy_package(__name__, EXPORTS, tuple(EXPORTS))
