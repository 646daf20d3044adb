"""Linear layers of tensor parallelism by the device's GEMMs fused with communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host


def _group(given: Any) -> Any:
    """A layer's ranks; before Megatron 0.14 layers do not know them."""
    if given is not None:
        return given
    from megatron.core import parallel_state

    return parallel_state.get_tensor_model_parallel_group()


def _adds(host: Host, fusion: bool) -> Any:
    from accel_bridge.kernels import WEIGHT_GRADIENT

    return host.kernels.resolve(WEIGHT_GRADIENT) if fusion else None


def _is_plain(x: Any, weight: Any, fusion: bool) -> bool:
    """Whether nothing else is asked of the GEMM: a frozen weight, offloading, sharded sums."""
    return (
        weight.requires_grad
        and not hasattr(x, "activation_offloading")
        and not hasattr(weight, "__fsdp_param__")
        and (not fusion or hasattr(weight, "main_grad"))
    )


def _make_column(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels.comm_gemm_overlap import chosen_overlap
    from accel_bridge.patches.modules.overlapped_linear import Sharding, overlapped_linear

    upstream = context.original
    host: Host = context.host
    names = ("input", "weight", "bias", "gradient_accumulation_fusion", "sequence_parallel")
    arguments = [context.argument(name) for name in names]
    # What a call must not ask for; not every Megatron has it.
    others = [context.optional_argument(name) for name in ("grad_output_buffer", "output_dtype")]
    group = context.optional_argument("tp_group")

    def linear(*args: Any, **kwargs: Any) -> Any:
        """As upstream; the gathering of the input and the GEMM are one operator."""
        gemms = chosen_overlap(host)
        if gemms is None:
            return upstream(*args, **kwargs)
        x, weight, bias, fusion, sequence = (one.get(args, kwargs) for one in arguments)
        if not sequence or any(one and one.get(args, kwargs) is not None for one in others):
            return upstream(*args, **kwargs)
        if not _is_plain(x, weight, fusion) or kwargs.get("gtp_remat_size", 1) > 1:
            return upstream(*args, **kwargs)
        ranks = _group(group.get(args, kwargs) if group else None)
        sharding = Sharding(gemms, ranks, False, True, _adds(host, fusion))
        return overlapped_linear(x, weight, bias, sharding)

    return linear


def _make_row(context: PatchContext) -> Callable[..., Any]:
    import torch.distributed as dist

    from accel_bridge.kernels.comm_gemm_overlap import chosen_overlap
    from accel_bridge.patches.modules.overlapped_linear import Sharding, overlapped_linear

    upstream = context.original
    host: Host = context.host

    def forward(self: Any, input_: Any) -> Any:
        """As upstream; the GEMM and the sum over the ranks are one operator."""
        gemms = chosen_overlap(host)
        fusion = self.gradient_accumulation_fusion
        if (
            gemms is None
            or self.is_expert
            or not self.input_is_parallel
            or getattr(self, "gtp_remat_size", 1) > 1
            or getattr(self.config, "_cpu_offloading_context", None) is not None
            or not _is_plain(input_, self.weight, fusion)
        ):
            return upstream(self, input_)
        ranks = _group(getattr(self, "tp_group", None))
        if dist.get_world_size(ranks) == 1:
            return upstream(self, input_)
        sharding = Sharding(gemms, ranks, True, self.sequence_parallel, _adds(host, fusion))
        out = overlapped_linear(input_, self.weight, None, sharding)
        if self.skip_bias_add:
            return out, self.bias
        return (out if self.bias is None else out + self.bias), None

    return forward


def _needless(host: Host) -> str | None:
    if host.backend.comm_gemm_overlap() is None:
        return f"the {host.backend.name} backend has no GEMMs fused with communication"
    return None


PATCHES = (
    megatron_patch(
        id="all-gather-gemm",
        target="megatron.core.tensor_parallel.layers:"
        "linear_with_grad_accumulation_and_async_allreduce",
        kind=Kind.WRAP,
        make=_make_column,
        why="--use-ascend-mc2 asks for GEMMs that overlap with their own communication",
        removed_when="upstream calls the device's fused GEMMs",
        loses="the flag has no effect on layers of the local implementation",
        uses=("input", "weight", "bias", "gradient_accumulation_fusion", "sequence_parallel"),
        skip_when=_needless,
    ),
    megatron_patch(
        id="gemm-reduce-scatter",
        target="megatron.core.tensor_parallel.layers:RowParallelLinear.forward",
        kind=Kind.WRAP,
        make=_make_row,
        why="--use-ascend-mc2 asks for GEMMs that overlap with their own communication",
        removed_when="upstream calls the device's fused GEMMs",
        loses="the flag has no effect on layers of the local implementation",
        uses=("self", "input_"),
        skip_when=_needless,
    ),
)
