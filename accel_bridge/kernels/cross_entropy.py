"""Contracts ``cross_entropy`` and ``linear_cross_entropy``: a loss, alone or with its layer.

The loss is per token, the vocabulary possibly split over ranks. The second makes no logits.

Legend: ... any leading dimensions (tokens), n tokens, h hidden size, v vocabulary, p ranks of the
tensor-parallel group.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.kernels._contract import Contract, compute_dtype


class _SumOverRanks(torch.autograd.Function):
    """Sum over a group; the gradient passes unchanged, since every rank holds the same loss."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, value: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def group_size(group: dist.ProcessGroup | None) -> int:
    """Ranks that share the vocabulary; 1 without a group."""
    return 1 if group is None else group.size()


def smoothing_weight(label_smoothing: float, vocabulary: int) -> float:
    """Weight of the mean over *all* classes that gives every *wrong* class an equal share."""
    return label_smoothing * vocabulary / (vocabulary - 1) if label_smoothing else 0.0


def cross_entropy_reference(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """``log(sum(exp(logits))) - logits[target]`` over the whole vocabulary, in float32.

    With label smoothing a: ``(1 - w) * loss - w * mean(log_softmax)``, ``w = a v / (v - 1)``.
    Megatron's own smoothing takes v and the mean of one rank's part, so its ranks disagree; this
    contract takes the whole vocabulary.

    :param logits: [..., v / p], any float dtype: this rank's slice, ranks in order.
    :param target: [...], int64, ids in [0, v), the same on every rank. A token with another
        target (BERT's -1 where nothing was masked) gets a finite loss, ``log(sum(exp(x - max)))``,
        which callers weigh with zero.
    :param group: the ranks over which the vocabulary is split; None when it is whole.
    :param label_smoothing: a in [0, 1): probability spread over the wrong classes.
    :returns: [...], float32 (float64 for float64), the same on every rank.
    """
    x = logits.to(compute_dtype(logits))
    ranks = group_size(group)
    part = x.shape[-1]
    first = part * group.rank() if group is not None else 0
    peak = x.detach().amax(-1)
    if ranks > 1:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    x = x - peak.unsqueeze(-1)
    elsewhere = (target < first) | (target >= first + part)
    index = (target - first).masked_fill(elsewhere, 0).unsqueeze(-1)
    predicted = x.gather(-1, index).squeeze(-1).masked_fill(elsewhere, 0.0)
    normalizer = _sum_over_ranks(x.exp().sum(-1), group).log()
    loss = normalizer - _sum_over_ranks(predicted, group)
    weight = smoothing_weight(label_smoothing, part * ranks)
    if not weight:
        return loss
    mean_log_probability = _sum_over_ranks(x.sum(-1), group) / (part * ranks) - normalizer
    return (1.0 - weight) * loss - weight * mean_log_probability


def _sum_over_ranks(value: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    if group is None or group_size(group) == 1:
        return value
    total: torch.Tensor = _SumOverRanks.apply(value, group)
    return total


CROSS_ENTROPY = Contract(
    name="cross_entropy",
    reference=cross_entropy_reference,
    formula="log(sum(exp(x))) - x[target], with label smoothing",
    source="Megatron's vocab_parallel_cross_entropy; smoothing: Szegedy et al. 2015, "
    "arXiv:1512.00567",
)


#: Tokens whose logits exist at the same time. The sums of the weight's gradient are read and
#: written once for each such chunk: fewer tokens would make that as long as the GEMMs.
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
        used = _Adding.apply(weight, main_grad)
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
