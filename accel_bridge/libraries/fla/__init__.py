"""flash-linear-attention's interface on the active backend's kernels: what Megatron asks of it."""

from __future__ import annotations

from accel_bridge.libraries._library import LIBRARIES

__version__ = LIBRARIES["fla"].version

_CONV = "ShortConvolution causal_conv1d causal_conv1d_update"
_RULE = "chunk_gated_delta_rule fused_recurrent_gated_delta_rule"
_GLA = "chunk_simple_gla fused_chunk_simple_gla fused_recurrent_simple_gla parallel_simple_gla"
_GATED = "FusedLayerNormGated FusedRMSNormGated"
_GATES = f"{_GATED} layer_norm_gated rms_norm_gated"
_L2 = "L2Norm l2_norm l2norm"

#: Public module -> the module here that implements it, and its names. The places of 0.5 come after
#: those of 0.6, which keeps them.
MODULES = {
    "fla.modules.causal_conv1d.ops": ("_modules", _CONV),
    "fla.modules.causal_conv1d": ("_modules", _CONV),
    "fla.modules.norm.fused_norm_gate": ("_modules", _GATES),
    "fla.modules.norm.l2norm": ("_modules", _L2),
    "fla.modules.norm": ("_modules", f"{_GATED} L2Norm"),
    "fla.modules.conv.causal_conv1d": ("_modules", "causal_conv1d causal_conv1d_update"),
    "fla.modules.conv.short_conv": ("_modules", _CONV),
    "fla.modules.conv": ("_modules", "ShortConvolution causal_conv1d"),
    "fla.modules.convolution": ("_modules", _CONV),
    "fla.modules.fused_norm_gate": ("_modules", _GATES),
    "fla.modules.l2norm": ("_modules", _L2),
    "fla.modules": ("_modules", f"{_GATED} L2Norm ShortConvolution"),
    "fla.ops.gated_delta_product.chunk": ("_ops", "chunk_gated_delta_product"),
    "fla.ops.gated_delta_product": ("_ops", "chunk_gated_delta_product"),
    "fla.ops.gated_delta_rule.chunk": ("_ops", "chunk_gated_delta_rule chunk_gdn"),
    "fla.ops.gated_delta_rule.fused_recurrent": (
        "_ops",
        "fused_recurrent_gated_delta_rule fused_recurrent_gdn",
    ),
    "fla.ops.gated_delta_rule.gate": ("_ops", "fused_gdn_gate"),
    "fla.ops.gated_delta_rule": ("_ops", f"{_RULE} chunk_gdn fused_recurrent_gdn"),
    "fla.ops.simple_gla.chunk": ("_ops", "chunk_simple_gla"),
    "fla.ops.simple_gla.fused_chunk": ("_ops", "fused_chunk_simple_gla"),
    "fla.ops.simple_gla.fused_recurrent": ("_ops", _GLA),
    "fla.ops.simple_gla.parallel": ("_ops", "parallel_simple_gla"),
    "fla.ops.simple_gla": ("_ops", _GLA),
    "fla.ops": ("_ops", f"{_RULE} {_GLA} chunk_gated_delta_product"),
    "fla.utils": ("_modules", "USE_CUDA_GRAPH"),
}
