"""Transformer Engine's Triton kernels of the cross entropy, where Triton has no device.

The logits stay as they are, whatever the caller allows to be written over them.

Legend: b batch, s sequence, v vocabulary, p ranks that share it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from accel_bridge.kernels import group_size


def cross_entropy_forward(
    _input: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float,
    reduce_loss: bool,
    dist_process_group: dist.ProcessGroup | None,
    ignore_idx: int,
    *overwrite_input: bool,
) -> tuple[Any, ...]:
    """The loss of each token, or their mean, in float32; and what the backward pass needs.

    :param _input: [b, s, v / p], any float dtype: this rank's slice of the logits.
    :param target: ids in [0, v), one for each row, or ``ignore_idx``: loss and gradient 0.
    :param label_smoothing: probability spread evenly over all v classes.
    :param overwrite_input: given from 2.20 on.
    :returns: loss [b, s] or [1], and the gradient of a loss of 1 as the logits; from 2.20 on the
        loss, the logits, their log-sum-exp [b, s], ``target``, the number of rows that count, rank
        and ranks.
    """
    ranks = group_size(dist_process_group)
    rank = 0 if dist_process_group is None else dist_process_group.rank()
    x = _input.detach().float()
    index, here, ignored = _targets(x, target, ignore_idx, rank)
    peak = x.amax(-1)
    if ranks > 1:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=dist_process_group)
    sums = [
        (x - peak.unsqueeze(-1)).exp().sum(-1),
        x.gather(-1, index).squeeze(-1).masked_fill(~here, 0.0),
        x.sum(-1),
    ]
    if ranks > 1:
        whole = torch.stack(sums)
        dist.all_reduce(whole, group=dist_process_group)
        sums = list(whole)
    lse = peak + sums[0].log()
    mean = lse - sums[2] / (x.shape[-1] * ranks)
    losses = (1.0 - label_smoothing) * (lse - sums[1]) + label_smoothing * mean
    losses = losses.masked_fill(ignored, 0.0)
    count = ignored.logical_not().sum().clamp(min=1).reshape(1)
    loss = losses.sum() / count if reduce_loss else losses
    if overwrite_input:
        return loss, _input, lse, target, count, rank, ranks
    gradient = _gradient(x, lse, target, label_smoothing, ignore_idx, rank, ranks)
    if reduce_loss:
        gradient = gradient / count
    return loss, gradient.to(_input.dtype)


def cross_entropy_backward(saved_input: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The gradient of the logits, from what the forward pass gave.

    :param rest: the loss's gradient and a flag; from 2.20 on log-sum-exp, ``target``, the number
        of rows that count or None, the loss's gradient, smoothing, whether the loss is a mean,
        rank, ranks and ``ignore_idx``.
    """
    if len(rest) == 2:
        gradient, of_loss = saved_input, rest[0]
    else:
        lse, target, count, of_loss, label_smoothing, reduce_loss, rank, ranks, ignore_idx = rest
        gradient = _gradient(
            saved_input.float(), lse, target, label_smoothing, ignore_idx, rank, ranks
        )
        if reduce_loss:
            of_loss = of_loss / count
    if of_loss.numel() > 1:
        of_loss = of_loss.reshape(*saved_input.shape[:-1], 1)
    result: torch.Tensor = gradient * of_loss
    return result.to(saved_input.dtype)


def _targets(
    x: torch.Tensor, target: torch.Tensor, ignore_idx: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Index of each row's class here [b, s, 1], whether it is here, whether it is ignored."""
    wanted = target.reshape(x.shape[:-1]).long()
    local = wanted - rank * x.shape[-1]
    here = (local >= 0) & (local < x.shape[-1])
    return local.clamp(0, x.shape[-1] - 1).unsqueeze(-1), here, wanted == ignore_idx


def _gradient(
    x: torch.Tensor,
    lse: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float,
    ignore_idx: int,
    rank: int,
    ranks: int,
) -> torch.Tensor:
    """float32, as the logits: of a loss of 1 in each row."""
    index, here, ignored = _targets(x, target, ignore_idx, rank)
    gradient = (x - lse.unsqueeze(-1)).exp_()
    gradient -= label_smoothing / (x.shape[-1] * ranks)
    gradient.scatter_add_(-1, index, here.unsqueeze(-1) * (label_smoothing - 1.0))
    return gradient.masked_fill_(ignored.unsqueeze(-1), 0.0)
