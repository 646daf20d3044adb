"""Layers: linear, normalised linear, MLP, grouped linear, norms, padding of expert batches."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "base": (
            "TransformerEngineBaseModule",
            "UserBufferQuantizationMode",
            "destroy_ub",
            "initialize_ub",
        ),
        "fp8_padding": ("Fp8Padding",),
        "fp8_unpadding": ("Fp8Unpadding",),
        "grouped_linear": ("GroupedLinear",),
        "layernorm": ("LayerNorm",),
        "layernorm_linear": ("LayerNormLinear",),
        "layernorm_mlp": ("LayerNormMLP",),
        "linear": ("Linear",),
        "rmsnorm": ("RMSNorm",),
    },
    (
        "_common",
        "base",
        "fp8_padding",
        "fp8_unpadding",
        "grouped_linear",
        "layernorm",
        "layernorm_linear",
        "layernorm_mlp",
        "linear",
        "rmsnorm",
    ),
)
