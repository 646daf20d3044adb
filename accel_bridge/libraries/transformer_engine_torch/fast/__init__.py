"""Short ways through Transformer Engine's own classes, for calls that need nothing of the long one.

Each module makes methods of some classes. A call that asks for more than it knows takes Transformer
Engine's own way; what it computes is the same, by the same kernels.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.libraries.transformer_engine_torch._loader import EXTENSION, Extension

#: Tensors without anything of their own: neither quantized nor distributed.
PLAIN: Final = {torch.Tensor, torch.nn.Parameter, FakeTensor}


_DTYPE: Final = attrgetter("dtype")


def is_plain(*tensors: Any) -> bool:
    """Whether each is None or an ordinary tensor of one and the same dtype."""
    found = [one for one in tensors if one is not None]
    return set(map(type, found)) <= PLAIN and len(set(map(_DTYPE, found))) == 1


class _States:
    """Transformer Engine's switches, found when they are first asked for."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(sys.modules[_MODULES[name]], name)
        setattr(self, name, found)
        return found


_MODULES: Final = {
    "is_cpu_offload_enabled": "transformer_engine.pytorch.cpu_offload",
    "is_fp8_activation_recompute_enabled": "transformer_engine.pytorch.distributed",
    "is_in_onnx_export_mode": "transformer_engine.pytorch.export",
    "TEDebugState": "transformer_engine.debug.pytorch.debug_state",
}
_states: Final = _States()


def interferes() -> bool:
    """Whether something watches or changes layers from outside."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._is_any_autocast_enabled()
        or _states.is_cpu_offload_enabled()
        or _states.is_in_onnx_export_mode()
        or _states.TEDebugState.debug_enabled
    )


def recomputes() -> bool:
    """Whether activations are computed again, with the scales of the first time."""
    return bool(_states.is_fp8_activation_recompute_enabled())


def needs_fp8(layer: Any, states: Any) -> bool:
    """Whether the layer is quantized, calibrated, or has to be told that it no longer is."""
    return bool(
        states.is_fp8_enabled() or states.is_fp8_calibration() or layer.fp8 or layer.fp8_calibration
    )


def is_above_our_extension() -> bool:
    """Whether Transformer Engine runs on accel_bridge's extension, not on NVIDIA's."""
    return isinstance(sys.modules.get(EXTENSION), Extension)


def can_quantize(states: Any) -> bool:
    """Whether FP8 is on, and quantizers are those of accel_bridge's extension."""
    return bool(states.is_fp8_enabled()) and is_above_our_extension()


def is_alone(layer: Any) -> bool:
    """Whether the layer is on one rank and computes its gradients at once; known for good."""
    known = layer.__dict__.get("_accel_bridge_alone")
    if known is None:
        store = getattr(layer, "wgrad_store", None)
        known = (
            layer.tp_size == 1
            and (store is None or not store.delay_wgrad_compute())
            and getattr(layer, "fsdp_group", None) is None
            and not getattr(layer, "is_fsdp2", False)
            and len(getattr(layer, "weight_names", ("weight",))) == 1
        )
        layer.__dict__["_accel_bridge_alone"] = known
    return bool(known)
