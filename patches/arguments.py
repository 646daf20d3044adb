"""The arguments phase for Megatron: which defaults and flags need a library that is not here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from accel_bridge._arguments import ArgumentRule, RefusedArgument
from accel_bridge._host import Host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches.input_paths import check_checkpoint, check_tokenizer
from accel_bridge.patching import Kind, PatchContext, before


def _without(name: str, *libraries: str) -> Callable[[Any, Host], bool]:
    """The flag is set and none of ``libraries`` can be used."""
    return lambda args, host: (
        bool(getattr(args, name)) and not any(host.library(library) for library in libraries)
    )


def _not_real_te(name: str) -> Callable[[Any, Host], bool]:
    """The flag is set and Transformer Engine is a stand-in or missing."""
    return lambda args, host: (
        bool(getattr(args, name))
        and (host.stands_in("transformer_engine") or not host.library("transformer_engine"))
    )


def _unfused(name: str, *libraries: str) -> ArgumentRule:
    return ArgumentRule(
        name=name,
        when=_without(name, *libraries),
        value=False,
        why=f"needs {' or '.join(libraries)}; the unfused form computes the same",
    )


def _mask_not_needed(args: Any, host: Host) -> bool:
    # Only a mask that is exactly causal may go; --reset-attention-mask makes it something else.
    return (
        bool(args.create_attention_mask_in_dataloader)
        and not getattr(args, "reset_attention_mask", False)
        and host.missing_kernel("attention") is None
    )


def _scales_in_float32(args: Any, host: Host) -> bool:
    # Transformer Engine wants an environment variable beside the flag; its stand-in needs neither.
    both = os.getenv("NVTE_APPLY_QK_LAYER_SCALING", "0") != "0"
    wanted = bool(args.apply_query_key_layer_scaling)
    return wanted and not both and host.stands_in("transformer_engine")


def _more_than(least: int, name: str) -> Callable[[Any, Host], bool]:
    """The local spec has no attention but upstream's, which cannot do it."""
    return lambda args, host: (
        getattr(args, name) > least
        and getattr(args, "transformer_impl", None) == "local"
        and not host.library("transformer_engine")
    )


def _no_inference_graphs(args: Any, host: Host) -> bool:
    scope = getattr(args.inference_cuda_graph_scope, "name", args.inference_cuda_graph_scope)
    return scope not in (None, "none") and not host.features.cuda_graphs


def _no_cuda_graphs(args: Any, host: Host) -> bool:
    return args.cuda_graph_impl not in (None, "none") and not host.features.cuda_graphs


def _interpreted_rope(args: Any, host: Host) -> bool:
    """The fused rotary embedding of latent attention is a Triton kernel of Megatron's own."""
    return (
        bool(args.apply_rope_fusion)
        and getattr(args, "multi_latent_attention", False)
        and not host.features.triton
    )


#: Arguments that change to another form of the same function.
RULES: tuple[ArgumentRule, ...] = (
    _unfused("gradient_accumulation_fusion", "fused_weight_gradient_mlp_cuda"),
    _unfused("masked_softmax_fusion", "scaled_masked_softmax_cuda"),
    _unfused("apply_rope_fusion", "transformer_engine"),
    ArgumentRule(
        name="apply_rope_fusion",
        when=_interpreted_rope,
        value=False,
        why="latent attention's fused form is a Triton kernel, slow in Triton's interpreter; the "
        "unfused form computes the same",
    ),
    *(
        _unfused(name, "transformer_engine")
        for name in (
            *("moe_permute_fusion", "moe_router_fusion", "moe_grouped_gemm"),
            *("use_te_activation_func", "use_transformer_engine_op_fuser"),
            *("fused_residual_rmsnorm", "te_rng_tracker", "use_te_rng_tracker"),
        )
    ),
    ArgumentRule(
        name="create_attention_mask_in_dataloader",
        when=_mask_not_needed,
        value=False,
        why="the attention kernel is causal by itself; the mask would be b*s*s values a batch",
    ),
    ArgumentRule(
        name="apply_query_key_layer_scaling",
        when=_scales_in_float32,
        value=False,
        why="the attention kernel computes scores in float32, where it changes nothing",
    ),
    ArgumentRule(
        name="inference_cuda_graph_scope",
        when=_no_inference_graphs,
        value=None,
        why="this device has no graphs",
    ),
    ArgumentRule(
        name="cuda_graph_impl",
        when=_no_cuda_graphs,
        value="none",
        why="this device has no graphs; the same kernels are launched one by one",
    ),
)

#: Arguments whose feature exists only in the real Transformer Engine.
REFUSED: tuple[RefusedArgument, ...] = tuple(
    RefusedArgument(
        name=name,
        flag=flag,
        when=_not_real_te(name),
        why="it exists only in the real Transformer Engine, which is not used here",
        next=next_step,
    )
    for name, flag, next_step in (
        ("fp4", "--fp4-format", "train in FP8 (--fp8-format) or bf16 (--bf16)"),
        ("tp_comm_overlap", "--tp-comm-overlap", "remove --tp-comm-overlap"),
        # Megatron replaces functions inside the real library, and passes over what is not there.
        ("batch_invariant_mode", "--batch-invariant-mode", "remove --batch-invariant-mode"),
    )
)

#: Arguments that the local spec's attention serves through Transformer Engine or its stand-in.
SERVED: tuple[RefusedArgument, ...] = tuple(
    RefusedArgument(
        name=name,
        flag=f"--{name.replace('_', '-')}",
        when=_more_than(least, name),
        why="the local spec's own attention has no such thing, and there is no Transformer Engine",
        next="leave transformer_engine in ACCEL_BRIDGE_LIBRARIES, or remove the flag",
    )
    for name, least in (("context_parallel_size", 1), ("multi_latent_attention", 0))
)

ALL_RULES: tuple[ArgumentRule | RefusedArgument, ...] = (*RULES, *REFUSED, *SERVED)


def _prepare(context: PatchContext, args: Any) -> None:
    """Check paths and adapt the arguments to the backend, before upstream validates them."""
    context.host.announce()
    check_tokenizer(args)
    check_checkpoint(args)
    context.host.adapt(args)


def _adapt(context: PatchContext, config: Any) -> None:
    """Adapt a configuration that was built without Megatron's arguments."""
    context.host.adapt(config)


PATCHES = (
    megatron_patch(
        id="arguments",
        target="megatron.training.arguments:validate_args",
        kind=Kind.WRAP,
        make=before(_prepare),
        why="defaults of Megatron name fused kernels that need Transformer Engine or Apex",
        removed_when="upstream's defaults follow what is installed",
        loses="scripts must carry --no-gradient-accumulation-fusion and its likes by hand",
        uses=("args",),
    ),
    megatron_patch(
        id="transformer-config",
        target="megatron.core.transformer.transformer_config:TransformerConfig.__post_init__",
        kind=Kind.WRAP,
        make=before(_adapt),
        why="code that builds its configuration itself never meets the arguments phase",
        removed_when="upstream's defaults follow what is installed",
        loses="configurations built in code keep fusions that cannot run here",
        uses=("self",),
    ),
)
