"""The arguments phase for Megatron: defaults that need what is not here, or leave out what is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches.argument_values import check_values
from accel_bridge.patches.checkpoints import check_checkpoint, check_tokenizer
from accel_bridge.patching import Kind, PatchContext, before
from accel_bridge.patching.host import ArgumentRule, Host, RefusedArgument, flag_of
from accel_bridge.recording import current_plan


def _without(name: str, *libraries: str) -> Callable[[Any, Host], bool]:
    """The flag is set and none of ``libraries`` can be used."""
    return lambda args, host: (
        bool(getattr(args, name)) and not any(host.library(library) for library in libraries)
    )


def _no_real_te(host: Host) -> bool:
    """Transformer Engine is completed by ours or missing."""
    return host.is_shimmed("transformer_engine_torch") or not host.library("transformer_engine")


def _not_real_te(name: str) -> Callable[[Any, Host], bool]:
    """The flag is set and the real Transformer Engine is not used."""
    return lambda args, host: bool(getattr(args, name)) and _no_real_te(host)


def _unfused(name: str, *libraries: str) -> ArgumentRule:
    return ArgumentRule(
        name=name,
        when=_without(name, *libraries),
        value=False,
        why=f"needs {' or '.join(libraries)}; the unfused form computes the same",
    )


#: Arguments that name what Megatron's own data sets read.
_OWN_DATA: Final = (
    *("data_path", "mock_data", "data_args_path", "per_split_data_args_path"),
    *("train_data_path", "valid_data_path", "test_data_path"),
)


def _mask_not_needed(args: Any, host: Host) -> bool:
    # Only a mask that is exactly causal may go; --reset-attention-mask makes it something else, and
    # data of a script's own may come with any.
    return (
        bool(args.create_attention_mask_in_dataloader)
        and any(getattr(args, name, None) for name in _OWN_DATA)
        and not getattr(args, "reset_attention_mask", False)
        and host.missing_kernel("attention") is None
    )


def _scales_in_float32(args: Any, host: Host) -> bool:
    # Transformer Engine wants an environment variable beside the flag; our kernels need neither.
    both = os.getenv("NVTE_APPLY_QK_LAYER_SCALING", "0") != "0"
    wanted = bool(args.apply_query_key_layer_scaling)
    return wanted and not both and host.is_shimmed("transformer_engine_torch")


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


def _one_memory(args: Any, host: Host) -> bool:
    level = getattr(args, "inference_dynamic_batching_unified_memory_level", 0)
    return bool(level) and host.features.tensors_on_host


def _interpreted_rope(args: Any, host: Host) -> bool:
    """The fused rotary embedding of latent attention is a Triton kernel of Megatron's own."""
    return (
        bool(args.apply_rope_fusion)
        and getattr(args, "multi_latent_attention", False)
        and not host.features.triton
    )


_no_writer_of_nvidia = _without("async_save", "nvidia_resiliency_ext")


def _no_writer_of_shards(args: Any, host: Host) -> bool:
    """Megatron's own asynchronous writer does not know the plans of these formats."""
    sharded = getattr(args, "ckpt_format", None) in ("fsdp_dtensor", "torch_dcp")
    return sharded and _no_writer_of_nvidia(args, host)


def _default_writer_missing(args: Any, host: Host) -> bool:
    """The asynchronous writer of nvidia-resiliency-ext, the default since 0.18, is not there."""
    return args.async_strategy == "nvrx" and _no_writer_of_nvidia(args, host)


def _no_fused_dispatcher(args: Any, host: Host) -> bool:
    """The library behind the flex dispatcher is not there."""
    if getattr(args, "moe_token_dispatcher_type", None) != "flex":
        return False
    if getattr(args, "moe_flex_dispatcher_backend", "deepep") != "ncclep":
        return not host.library("deep_ep")
    # NVIDIA's compiled Transformer Engine holds NCCL EP.
    return _no_real_te(host) or not host.library("transformer_engine.pytorch.ep")


def _drops_by_rank(args: Any, host: Host) -> bool:
    """Tokens that a rank has no room for are dropped, which no other dispatcher does."""
    return args.moe_expert_rank_capacity_factor is not None and _no_fused_dispatcher(args, host)


def _dispatches_mxfp8(name: str) -> Callable[[Any, Host], bool]:
    """Tokens are sent in MXFP8, by a dispatcher that is not there."""
    return lambda args, host: (
        getattr(args, name) == "mxfp8"
        and getattr(args, "moe_flex_dispatcher_backend", None) == "ncclep"
        and _no_fused_dispatcher(args, host)
    )


#: What Megatron's ``moe_utils`` takes from Transformer Engine for a fused permutation.
_MOVES = (
    "fused_permute",
    "fused_permute_with_probs",
    "fused_unpermute",
    "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs",
)


def _moves_faster(args: Any, host: Host) -> bool:
    """Experts' tokens move by other functions than by kernels that are there."""
    experts = getattr(args, "num_experts", None) or getattr(args, "num_moe_experts", None)
    if args.moe_permute_fusion or not experts:
        return False
    # With a capacity Megatron itself moves tokens by views.
    if getattr(args, "moe_expert_capacity_factor", None) is not None:
        return False
    from accel_bridge.kernels import TOKEN_PERMUTE

    shim = host.is_shimmed("transformer_engine_torch")
    if shim and host.kernels.resolve(TOKEN_PERMUTE).is_reference:
        return False
    if not (shim or host.library("transformer_engine")):
        return False
    from megatron.core.transformer.moe import moe_utils

    # Older versions have fewer of them; a name without a function is a library that is too old.
    return all(getattr(moe_utils, name, True) is not None for name in _MOVES)


def _divides_by_none(args: Any, host: Host) -> bool:
    """Megatron 0.17 and later count validation samples by an interval that has no default."""
    counts = hasattr(args, "train_iters") and not getattr(args, "skip_train", False)
    return args.eval_interval is None and counts and not getattr(args, "full_validation", False)


def _no_multicast(args: Any, host: Host) -> bool:
    """Experts' tokens would move through NVLink's multicast, by Triton kernels of its own."""
    return (
        getattr(args, "inference_moe_token_dispatcher_type", None) == "nvls"
        and getattr(args, "transformer_impl", None) == "inference_optimized"
        and getattr(args, "expert_model_parallel_size", 1) > 1
        and not host.features.triton
    )


def _overlaps_multicast(args: Any, host: Host) -> bool:
    """Beside latent experts, only the dispatcher of NVLink overlaps the shared one."""
    latent = getattr(args, "moe_latent_size", None)
    return bool(args.moe_shared_expert_overlap) and bool(latent) and _no_multicast(args, host)


_SAME_TOKENS = "its library is not installed; alltoall moves the same tokens"

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
    _unfused("use_flashinfer_fused_rope", "flashinfer"),
    ArgumentRule(
        name="moe_permute_fusion",
        when=_moves_faster,
        value=True,
        why="one pass moves tokens to experts and back; the unfused form takes five, and waits for "
        "the device",
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
    # The dispatcher's type goes last: the others ask for it.
    *(
        ArgumentRule(name=name, when=_no_fused_dispatcher, value=value, why=_SAME_TOKENS)
        for name, value in (
            ("moe_enable_deepep", False),
            ("moe_flex_dispatcher_backend", "deepep"),
            ("moe_token_dispatcher_type", "alltoall"),
        )
    ),
    ArgumentRule(
        name="async_save",
        when=_no_writer_of_shards,
        value=False,
        why="nvidia-resiliency-ext is not installed, whose writer alone takes this format; "
        "training waits for the same files",
    ),
    ArgumentRule(
        name="async_strategy",
        when=_default_writer_missing,
        value="mcore",
        why="nvidia-resiliency-ext is not installed; Megatron's writer makes the same files",
    ),
    ArgumentRule(
        name="eval_interval",
        when=_divides_by_none,
        value=1000,
        why="this Megatron divides by it without a default; 1000 is the one of 0.16 and earlier",
    ),
    ArgumentRule(
        name="inference_cuda_graph_scope",
        when=_no_inference_graphs,
        value=None,
        why="this device has no graphs",
    ),
    ArgumentRule(
        name="inference_dynamic_batching_unified_memory_level",
        when=_one_memory,
        value=0,
        why="device memory is host memory here; there is nothing to unify",
    ),
    # The overlap goes first: it asks for the dispatcher.
    ArgumentRule(
        name="moe_shared_expert_overlap",
        when=_overlaps_multicast,
        value=False,
        why="only NVLink's dispatcher overlaps",
    ),
    ArgumentRule(
        name="inference_moe_token_dispatcher_type",
        when=_no_multicast,
        value="nccl",
        why="this device has no NVLink; collectives compute the same",
    ),
    ArgumentRule(
        name="cuda_graph_impl",
        when=_no_cuda_graphs,
        value="none",
        why="this device has no graphs; the same kernels are launched one by one",
    ),
)

#: Arguments whose feature needs a library that has no shim.
REFUSED: tuple[RefusedArgument, ...] = (
    RefusedArgument(
        name="moe_expert_rank_capacity_factor",
        flag="--moe-expert-rank-capacity-factor",
        when=_drops_by_rank,
        why="only HybridEP and NCCL EP, not installed, drop tokens by rank",
        next="remove it, or install DeepEP with HybridEP",
    ),
    *(
        RefusedArgument(
            name=name,
            flag=flag_of(name),
            when=_dispatches_mxfp8(name),
            why="only NCCL EP, not installed, sends MXFP8",
            next="give bf16",
        )
        for name in ("moe_dispatch_fwd_dtype", "moe_combine_bwd_dtype")
    ),
    RefusedArgument(
        name="fp8",
        flag="--fp8-format",
        when=_without("fp8", "transformer_engine"),
        why="FP8 is Transformer Engine's, and there is none: the local spec would train without it",
        next="pip install transformer_engine, or train in bf16 (--bf16, without --fp8-format)",
    ),
    *(
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
            *(
                (name, flag_of(name), f"remove {flag_of(name)}")
                for name in ("fp8_dot_product_attention", "fp8_multi_head_attention")
            ),
            # Megatron replaces functions inside the real library, and passes over what is not
            # there.
            ("batch_invariant_mode", "--batch-invariant-mode", "remove --batch-invariant-mode"),
        )
    ),
)

#: Arguments that the local spec's attention serves through Transformer Engine.
SERVED: tuple[RefusedArgument, ...] = tuple(
    RefusedArgument(
        name=name,
        flag=flag_of(name),
        when=_more_than(least, name),
        why="the local spec's own attention has no such thing, and there is no Transformer Engine",
        next="pip install transformer_engine and leave it in ACCEL_BRIDGE_LIBRARIES, or remove the "
        "flag",
    )
    for name, least in (("context_parallel_size", 1), ("multi_latent_attention", 0))
)


def _no_transformer_engine(args: Any, host: Host) -> bool:
    asked = getattr(args, "transformer_impl", None) == "transformer_engine"
    return asked and not host.library("transformer_engine")


#: Before the others, which ask for the spec.
LOCAL = ArgumentRule(
    name="transformer_impl",
    when=_no_transformer_engine,
    value="local",
    why="there is no Transformer Engine; `pip install transformer_engine` brings its Python, and "
    "accel_bridge the rest",
)


def _torch_norm(args: Any, host: Host) -> bool:
    local = getattr(args, "transformer_impl", None) == "local"
    return bool(args.persist_layer_norm) and local and not host.library("transformer_engine")


#: The local spec's norm is torch's where there is no Transformer Engine to take one from.
PERSISTENT = ArgumentRule(
    name="persist_layer_norm",
    when=_torch_norm,
    value=False,
    why="the local spec's norm is torch's here, which computes the same",
)

ALL_RULES: tuple[ArgumentRule | RefusedArgument, ...] = (
    *(LOCAL, PERSISTENT),
    *REFUSED,
    *SERVED,
    *RULES,
)


#: A hardware queue for everything is what tensor parallelism wants, and what FSDP refuses.
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"

#: What FSDP is called in Megatron 0.12 to main.
FSDP = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")


def several_queues(args: Any, host: Host) -> None:
    """Take the backend's default number of hardware queues back where FSDP refuses it."""
    default = host.backend.environment().get(QUEUES)
    asked = any(getattr(args, name, False) for name in FSDP)
    if asked and default is not None and os.environ.get(QUEUES) == default:
        del os.environ[QUEUES]
        host.say_once(f"environment {QUEUES}: {default} -> unset (FSDP wants several queues)")


def _prepare(context: PatchContext, args: Any) -> None:
    """Check values and paths and adapt the arguments, before upstream validates them."""
    context.host.announce()
    plan = current_plan()
    if plan is not None and plan.tokens:
        from accel_bridge.patches.modules.scored_tokens import take_model

        take_model(args)
    check_values(args, context.host)
    check_tokenizer(args)
    check_checkpoint(args)
    changes = context.host.adapt(args)
    if (session := getattr(context.host.backend, "rehearsal", None)) is not None:
        for change in changes:
            if change.name == "moe_token_dispatcher_type":  # the cluster may have its library
                session.note(str(change))
    several_queues(args, context.host)


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
