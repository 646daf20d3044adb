"""The gradient of Megatron's fused loss, where no kernel takes the loss's place.

Legend: s sequence, b batch, v vocabulary, p ranks that the vocabulary is split over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host

if TYPE_CHECKING:
    import torch


def _make(context: PatchContext) -> Callable[..., Any]:
    entropy = context.module.VocabParallelCrossEntropy

    @functools.wraps(context.original)
    def calculate_gradients(
        softmax: torch.Tensor,
        grad_output: torch.Tensor,
        target_mask: torch.Tensor,
        masked_target_1d: torch.Tensor,
    ) -> torch.Tensor:
        """The gradient of the logits [s, b, v/p] in float32; autograd turns it into their dtype.

        :param softmax: [s, b, v/p], float32; it is overwritten, as upstream's does.
        """
        rows, numbers, update, gradient = entropy.prepare_gradient_calculation_operands(
            softmax, target_mask
        )
        result: torch.Tensor = entropy.calculate_gradients(
            rows, numbers, masked_target_1d, update, gradient, grad_output
        )
        return result

    return calculate_gradients


def _not_used(host: Host) -> str | None:
    from accel_bridge.kernels import CROSS_ENTROPY

    kernel = host.kernels.get(CROSS_ENTROPY)
    if kernel is None or kernel.is_reference:
        return None
    return "the backend's kernel computes the loss and its gradient"


PATCHES = (
    megatron_patch(
        id="loss-gradient",
        target="megatron.core.fusions.fused_cross_entropy:calculate_gradients",
        kind=Kind.REPLACE,
        make=_make,
        why="used by --cross-entropy-loss-fusion: it rounds the gradient of the logits to bfloat16 "
        "whatever their dtype, so that a float32 run has gradients that are wrong by 1e-3",
        removed_when="upstream's fused loss gives the gradient in the dtype of the logits",
        loses="gradients of float32 and float16 runs are rounded to bfloat16 once",
        skip_when=_not_used,
    ),
)
