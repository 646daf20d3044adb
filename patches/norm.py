"""LayerNorm and RMSNorm of the local spec: sequence parallel, zero-centred gamma, any backend;
and latent attention without a compressed query, whose norm has nothing to normalize.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch, without_transformer_engine
from accel_bridge.patching import Kind, PatchContext, around
from accel_bridge.patching.host import Host


def _new(
    _context: PatchContext, call: Callable[[], Any], config: Any, hidden_size: int, eps: float
) -> Any:
    """The norm of Transformer Engine's spec; upstream's for L2Norm, which that has not."""
    if config.normalization not in ("LayerNorm", "RMSNorm"):
        return call()
    from megatron.core.extensions.transformer_engine import TENorm

    norm = TENorm(config, hidden_size, eps)
    norm.returns_residual = False  # what callers of 0.20 ask
    return norm


def _make_from_options(context: PatchContext) -> Callable[..., Any]:
    def from_options(cls: type, options: object) -> object:
        """The backend, whatever the options: `torch-norm` has given its norm what it refuses."""
        return cls()

    return from_options


def _make_final_norm(context: PatchContext) -> object:
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    return WrappedTorchNorm


def _real_apex(host: Host) -> str | None:
    return None if host.is_shimmed("apex") else "apex is the real one, or missing"


_NORMS = (
    megatron_patch(
        id="torch-norm",
        target="megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
        kind=Kind.WRAP,
        make=around(_new),
        why="the norm refuses sequence parallelism, zero-centred gamma and its own default "
        "persist_layer_norm",
        removed_when="WrappedTorchNorm supports sequence_parallel and zero_centered_gamma",
        loses="the local spec stops at 'persist_layer_norm not supported by torch LayerNorm'",
        uses=("config", "hidden_size", "eps"),
        skip_when=without_transformer_engine,
    ),
    megatron_patch(
        id="torch-norm-options",
        target="megatron.core.ops.norm.backends:NormTorch.from_options",
        kind=Kind.WRAP,
        make=_make_from_options,
        why="the table of operator backends refuses what the norm itself would, among it the "
        "default persist_layer_norm",
        removed_when="NormTorch supports sequence_parallel and persist_layer_norm",
        loses='the local spec stops at "Torch\'s norm cannot do persistent layer norm"',
        optional=True,
        requires="megatron-core>=0.20",
        elsewhere="there is no table of operator backends (NVIDIA/Megatron-LM#6689)",
        skip_when=without_transformer_engine,
    ),
    megatron_patch(
        id="local-final-norm",
        target="megatron.core.models.gpt.gpt_layer_specs:LNImpl",
        kind=Kind.ATTRIBUTE,
        make=_make_final_norm,
        why="beside Apex the local spec takes its LayerNorm after the last layer, whichever norm "
        "the model has",
        removed_when="every version has it: main since NVIDIA/Megatron-LM#6766",
        loses="the local spec stops for experts with --normalization RMSNorm",
        optional=True,
        elsewhere="upstream's local spec asks for the norm that the configuration names",
        skip_when=_real_apex,
    ),
)


def _resolve(_context: PatchContext, call: Callable[[], Any], resolver: Any) -> Any:
    """As upstream; the query's norm of the local layers is left out where nothing uses it."""
    config, layers = resolver.config, resolver.submodules
    if (
        resolver.has_q_lora
        or resolver.is_dsa
        or not config.qk_layernorm
        or config.qk_l2_norm
        or resolver.fused_norm_linear_impl is not None
        or resolver._is_trivial(layers.q_layernorm)
    ):
        return call()
    # With a compressed query its norm has a place: the key's part is resolved the same way.
    resolver.has_q_lora = True
    try:
        found = call()
    finally:
        resolver.has_q_lora = False
    from megatron.core.transformer.identity_op import IdentityOp

    return {
        **found,
        "linear_q_proj": layers.linear_q_proj or resolver.linear_impl,
        "linear_q_up_proj": IdentityOp,
        "q_layernorm": IdentityOp,
    }


_LATENT = (
    megatron_patch(
        id="latent-query-norm",
        target="megatron.core.transformer.mla_qk_norm_config:QKNormConfigResolver.resolve",
        requires="megatron-core>=0.19",
        elsewhere="before 0.19 the norm is left out where nothing uses it",
        kind=Kind.WRAP,
        make=around(_resolve),
        why="with --qk-layernorm the local layers name a norm for the query, and are refused where "
        "it is not compressed (no --q-lora-rank: DeepSeek V2-Lite, Moonlight)",
        removed_when="upstream's local layers name that norm only with --q-lora-rank",
        loses="such models cannot be built with --transformer-impl local",
        uses=("self",),
    ),
)

PATCHES = (*_NORMS, *_LATENT)
