"""The loss: cross-entropy over a vocabulary split by tensor parallelism."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._conditions import unless_faster
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

_WHY = (
    "it keeps the logits and their softmax in float32; the backend's kernel keeps three numbers "
    "per token and writes the gradient over the logits"
)
_LOSES = "the loss takes several times the memory of the logits, and a fifth of a step's time"


def _make_unfused(context: PatchContext) -> Callable[..., Any]:
    import torch.distributed as dist
    from megatron.core.parallel_state import get_tensor_model_parallel_group

    from accel_bridge.kernels import CROSS_ENTROPY

    kernel = context.host.kernel(CROSS_ENTROPY)
    upstream = context.original

    @functools.wraps(upstream)
    def vocab_parallel_cross_entropy(
        vocab_parallel_logits: Any,
        target: Any,
        label_smoothing: float = 0.0,
        tp_group: Any = None,  # since 0.19
    ) -> Any:
        """Loss [s, b] in float32 of logits [s, b, v/p] and target [s, b]."""
        group = get_tensor_model_parallel_group() if tp_group is None else tp_group
        if not isinstance(group, dist.ProcessGroup):
            # A caller's own object: only upstream knows what it is asked for.
            return upstream(vocab_parallel_logits, target, label_smoothing, tp_group=tp_group)
        return kernel(vocab_parallel_logits, target, group=group, label_smoothing=label_smoothing)

    return vocab_parallel_cross_entropy


def _make_fused(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import CROSS_ENTROPY

    kernel = context.host.kernel(CROSS_ENTROPY)

    def fused_vocab_parallel_cross_entropy(
        vocab_parallel_logits: Any, target: Any, tp_group: Any
    ) -> Any:
        """Loss [s, b] in float32 of logits [s, b, v/p] and target [s, b]."""
        return kernel(vocab_parallel_logits, target, group=tp_group)

    return fused_vocab_parallel_cross_entropy


PATCHES = (
    megatron_patch(
        id="cross-entropy",
        target="megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
        kind=Kind.WRAP,
        uses=("vocab_parallel_logits", "target", "label_smoothing"),
        make=_make_unfused,
        why=_WHY,
        removed_when="upstream's loss keeps no float32 copy of the logits",
        loses=_LOSES,
        skip_when=unless_faster("cross_entropy"),
        kernels=("cross_entropy",),
    ),
    megatron_patch(
        id="cross-entropy-fused",
        target="megatron.core.fusions.fused_cross_entropy:fused_vocab_parallel_cross_entropy",
        kind=Kind.REPLACE,
        make=_make_fused,
        why=f"used by --cross-entropy-loss-fusion: {_WHY}",
        removed_when="upstream's loss keeps no float32 copy of the logits",
        loses=_LOSES,
        skip_when=unless_faster("cross_entropy"),
        kernels=("cross_entropy",),
    ),
)
