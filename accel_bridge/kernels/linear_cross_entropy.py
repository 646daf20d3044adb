"""Contract ``linear_cross_entropy``: an output layer and its loss, without the logits.

Legend: ... any leading dimensions (tokens), n tokens, h hidden size, v vocabulary, p ranks of the
tensor-parallel group.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.kernels._contract import Contract
from accel_bridge.kernels.cross_entropy import cross_entropy_reference

#: Tokens whose logits exist at the same time. The sums of the weight's gradient are read and
#: written once for each such chunk: fewer tokens would make that as long as the products.
LOSS_CHUNK: Final = 4096
#: A kernel that holds more than this part of the logits' memory is not worth its passes.
_WORTH: Final = 0.75


class _Adding(torch.autograd.Function):
    """The weight, whose gradient is added to ``main_grad``; autograd gets none."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
        ctx.main_grad = main_grad
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        ctx.main_grad.add_(gradients[0])
        return None, None


def linear_cross_entropy_reference(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    token_weight: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    scale: float = 1.0,
    main_grad: torch.Tensor | None = None,
) -> torch.Tensor:
    """``cross_entropy(scale * input @ weight^T, target)``, one loss for each token, in float32.

    A kernel computes the logits of some tokens at a time, and may compute gradients in the forward
    pass: before anybody knows the gradients of the losses, which multiply them token by token. It
    then reads these on the host in the backward pass, so that no graph may capture it.

    :param input: [..., h], any float dtype, the same on every rank. Its gradient is this rank's
        part of the sum over ranks.
    :param weight: [v / p, h], as ``input``: this rank's rows, ranks in order.
    :param target: [...], int64, ids in [0, v), the same on every rank; others as in
        ``cross_entropy``.
    :param token_weight: [...], what the gradients of the losses are expected to be proportional to
        (a loss mask). Results do not depend on it; a kernel does less where it is right.
    :param group: the ranks over which the vocabulary is split; None when it is whole.
    :param scale: the logits' factor.
    :param main_grad: [v / p, h]: the weight's gradient is added to it, in place, by the backward
        pass, and autograd gets none.
    :returns: [...], float32 (float64 for float64), the same on every rank.
    """
    used: torch.Tensor = weight
    if main_grad is not None:
        used = _Adding.apply(weight, main_grad)  # type: ignore[no-untyped-call]
    logits = torch.matmul(input, used.t())
    return cross_entropy_reference(logits if scale == 1.0 else logits * scale, target, group=group)


def saves_memory(
    tokens: int, hidden: int, vocabulary: int, itemsize: int, *, trains_weight: bool
) -> bool:
    """Whether a kernel that computes gradients in the forward pass holds less than the logits.

    It holds a chunk's logits, the sums of the weight's gradient in float32 and the input with its
    gradient; ``vocabulary`` is one rank's part.
    """
    held = min(tokens, LOSS_CHUNK) * vocabulary * itemsize + 2 * tokens * hidden * itemsize
    held += 4 * vocabulary * hidden if trains_weight else 0
    return held < _WORTH * tokens * vocabulary * itemsize


LINEAR_CROSS_ENTROPY = Contract(
    name="linear_cross_entropy",
    reference=linear_cross_entropy_reference,
    formula="cross_entropy(scale input weight^T, target)",
    source="Megatron's output layer and vocab_parallel_cross_entropy; gradients in the forward "
    "pass: Hsu et al. 2024, arXiv:2410.10989",
)
