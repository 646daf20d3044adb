"""Contract ``cross_entropy``: loss per token, the vocabulary possibly split over ranks.

Legend: ... any leading dimensions (tokens), v vocabulary, p ranks of the tensor-parallel group.
"""

from __future__ import annotations

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
    total: torch.Tensor = _SumOverRanks.apply(value, group)  # type: ignore[no-untyped-call]
    return total


CROSS_ENTROPY = Contract(
    name="cross_entropy",
    reference=cross_entropy_reference,
    formula="log(sum(exp(x))) - x[target], with label smoothing",
    source="Megatron's vocab_parallel_cross_entropy; smoothing: Szegedy et al. 2015, "
    "arXiv:1512.00567",
)
