"""The arguments phase for Megatron: which defaults and flags need a library that is not here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge._arguments import ArgumentRule, RefusedArgument
from accel_bridge._host import Host
from accel_bridge.patches import linear
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches.input_paths import check_checkpoint, check_tokenizer
from accel_bridge.patches.packed_documents import packs_documents
from accel_bridge.patching import Kind, PatchContext


def _without_te(name: str) -> Callable[[Any, Host], bool]:
    """The flag is set and Transformer Engine cannot be used."""
    return lambda args, host: bool(getattr(args, name)) and not host.library("transformer_engine")


def _without(name: str, *libraries: str) -> Callable[[Any, Host], bool]:
    """The flag is set and none of ``libraries`` can be used."""
    return lambda args, host: (
        bool(getattr(args, name)) and not any(host.library(library) for library in libraries)
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


def _no_cuda_graphs(args: Any, host: Host) -> bool:
    return args.cuda_graph_impl not in (None, "none") and not host.features.cuda_graphs


def _no_weight_gradient(args: Any, host: Host) -> bool:
    # Also with Transformer Engine: Megatron's own output layer knows only Apex's extension.
    if not args.gradient_accumulation_fusion or host.library(linear.EXTENSION):
        return False
    from accel_bridge.kernels import WEIGHT_GRADIENT

    kernel = host.kernels.get(WEIGHT_GRADIENT)
    return kernel is None or kernel.is_reference


def _no_grouped_experts(args: Any, host: Host) -> bool:
    if not args.moe_grouped_gemm or host.library("transformer_engine"):
        return False
    from accel_bridge.kernels import GROUPED_MATMUL

    kernel = host.kernels.get(GROUPED_MATMUL)
    return kernel is None or kernel.is_reference


def _divided_documents(args: Any, host: Host) -> bool:
    divided = packs_documents(args) and args.context_parallel_size > 1
    return divided and not host.library("transformer_engine")


#: Arguments that change to another form of the same function.
RULES: tuple[ArgumentRule, ...] = (
    ArgumentRule(
        name="gradient_accumulation_fusion",
        when=_no_weight_gradient,
        value=False,
        why="needs Apex's fused_weight_gradient_mlp_cuda or a kernel of the backend; the unfused "
        "form computes the same",
    ),
    _unfused("masked_softmax_fusion", "scaled_masked_softmax_cuda"),
    _unfused("apply_rope_fusion", "transformer_engine"),
    _unfused("moe_permute_fusion", "transformer_engine"),
    _unfused("moe_router_fusion", "transformer_engine"),
    ArgumentRule(
        name="moe_grouped_gemm",
        when=_no_grouped_experts,
        value=False,
        why="needs transformer_engine or a grouped product of the backend; one expert after "
        "another computes the same",
    ),
    _unfused("use_te_activation_func", "transformer_engine"),
    _unfused("use_transformer_engine_op_fuser", "transformer_engine"),
    _unfused("fused_residual_rmsnorm", "transformer_engine"),
    _unfused("te_rng_tracker", "transformer_engine"),
    _unfused("use_te_rng_tracker", "transformer_engine"),
    ArgumentRule(
        name="create_attention_mask_in_dataloader",
        when=_mask_not_needed,
        value=False,
        why="the attention kernel is causal by itself; the mask would be b*s*s values a batch",
    ),
    ArgumentRule(
        name="cuda_graph_impl",
        when=_no_cuda_graphs,
        value="none",
        why="this device has no graphs; the same kernels are launched one by one",
    ),
)

#: Arguments whose feature exists only in Transformer Engine.
REFUSED: tuple[RefusedArgument, ...] = tuple(
    RefusedArgument(
        name=name,
        flag=flag,
        when=_without_te(name),
        why="it exists only in Transformer Engine, which cannot be used here",
        next=next_step,
    )
    for name, flag, next_step in (
        ("fp8", "--fp8-format", "train in bf16 (--bf16) or fp16 (--fp16)"),
        ("fp4", "--fp4-format", "train in bf16 (--bf16) or fp16 (--fp16)"),
        ("tp_comm_overlap", "--tp-comm-overlap", "remove --tp-comm-overlap"),
        (
            "defer_embedding_wgrad_compute",
            "--defer-embedding-wgrad-compute",
            "remove --defer-embedding-wgrad-compute",
        ),
        ("delay_wgrad_compute", "--delay-wgrad-compute", "remove --delay-wgrad-compute"),
        (
            "use_precision_aware_optimizer",
            "--use-precision-aware-optimizer",
            "remove --use-precision-aware-optimizer",
        ),
        ("qk_clip", "--qk-clip", "remove --qk-clip"),
        ("log_max_attention_logit", "--log-max-attention-logit", "remove the flag"),
        ("cpu_offloading", "--cpu-offloading-num-layers", "use recomputation (--recompute-*)"),
    )
)

#: Arguments that this project's attention cannot follow together.
REFUSED_TOGETHER: tuple[RefusedArgument, ...] = (
    RefusedArgument(
        name="context_parallel_size",
        flag="--context-parallel-size above 1 with packed documents",
        when=_divided_documents,
        why="attention here takes whole documents, not parts of them (packed by "
        "--dataloader-inter-document-masking or --sft)",
        next="use --context-parallel-size 1, or rows that are one text",
    ),
)

ALL_RULES: tuple[ArgumentRule | RefusedArgument, ...] = (*RULES, *REFUSED, *REFUSED_TOGETHER)


def _make_validate_args(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    host: Host = context.host
    parsed = context.argument("args")

    @functools.wraps(upstream)
    def validate_args(*args: Any, **kwargs: Any) -> Any:
        """Check paths, adapt the arguments to the backend, then validate them as upstream does."""
        host.announce()
        megatron_args = parsed.get(args, kwargs)
        check_tokenizer(megatron_args)
        check_checkpoint(megatron_args)
        host.adapt(megatron_args)
        return upstream(*args, **kwargs)

    return validate_args


def _make_post_init(context: PatchContext) -> Callable[..., None]:
    upstream = context.original
    host: Host = context.host

    @functools.wraps(upstream)
    def __post_init__(self: Any, *args: Any, **kwargs: Any) -> None:
        """Adapt a configuration that was built without Megatron's arguments."""
        host.adapt(self)
        upstream(self, *args, **kwargs)

    return __post_init__


PATCHES = (
    megatron_patch(
        id="arguments",
        target="megatron.training.arguments:validate_args",
        kind=Kind.WRAP,
        make=_make_validate_args,
        why="defaults of Megatron name fused kernels that need Transformer Engine or Apex",
        removed_when="upstream's defaults follow what is installed",
        loses="scripts must carry --no-gradient-accumulation-fusion and its likes by hand",
        uses=("args",),
    ),
    megatron_patch(
        id="transformer-config",
        target="megatron.core.transformer.transformer_config:TransformerConfig.__post_init__",
        kind=Kind.WRAP,
        make=_make_post_init,
        why="code that builds its configuration itself never meets the arguments phase",
        removed_when="upstream's defaults follow what is installed",
        loses="configurations built in code keep fusions that cannot run here",
    ),
)
