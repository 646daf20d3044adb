"""The loss: cross-entropy over a vocabulary split by tensor parallelism, by one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch, unless_faster
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    import torch.distributed as dist
    from megatron.core.parallel_state import get_tensor_model_parallel_group

    from accel_bridge.kernels import CROSS_ENTROPY

    kernel = context.host.kernel(CROSS_ENTROPY)
    upstream = context.original
    logits, target = context.argument("vocab_parallel_logits"), context.argument("target")
    smoothing = context.optional_argument("label_smoothing")
    ranks = context.optional_argument("tp_group")  # of the unfused one since 0.19

    def cross_entropy(*args: Any, **kwargs: Any) -> Any:
        """Loss [s, b] in float32 of logits [s, b, v/p] and target [s, b]."""
        group = ranks.get(args, kwargs) if ranks else None
        group = get_tensor_model_parallel_group() if group is None else group
        if not isinstance(group, dist.ProcessGroup):
            # A caller's own object: only upstream knows what it is asked for.
            return upstream(*args, **kwargs)
        return kernel(
            logits.get(args, kwargs),
            target.get(args, kwargs),
            group=group,
            label_smoothing=smoothing.get(args, kwargs) if smoothing else 0.0,
        )

    return cross_entropy


PATCHES = tuple(
    megatron_patch(
        id=id,
        target=f"megatron.core.{target}",
        kind=Kind.WRAP,
        uses=("vocab_parallel_logits", "target"),
        make=_make,
        why=f"{used}it keeps the logits and their softmax in float32; the kernel keeps three "
        "numbers per token",
        removed_when="upstream's loss keeps no float32 copy of the logits",
        loses="the loss takes several times the memory of the logits, and a fifth of a step's time",
        skip_when=unless_faster("cross_entropy"),
        kernels=("cross_entropy",),
    )
    for id, target, used in (
        ("cross-entropy", "tensor_parallel.cross_entropy:vocab_parallel_cross_entropy", ""),
        (
            "cross-entropy-fused",
            "fusions.fused_cross_entropy:fused_vocab_parallel_cross_entropy",
            "used by --cross-entropy-loss-fusion: ",
        ),
    )
)
