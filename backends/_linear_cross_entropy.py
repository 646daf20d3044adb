"""An output layer and its loss, some tokens at a time: the part that all backends share.

Legend: n tokens, h hidden size, v this rank's part of the vocabulary, g gradients of the losses.

The gradient of a token's logits is g times (softmax - one hot). The forward pass computes it
without g, multiplies it by the weight for the input's gradient, whose rows the backward pass
multiplies by g, and sums its GEMM with the input over tokens. Of these sums the backward pass
makes the weight's gradient where g is one number times the expected weights; what single tokens
differ by is added, from their logits computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.kernels import LOSS_CHUNK, compute_dtype, group_size

#: Differences that rounding explains, in units of the last place.
_ROUNDING: Final = 4


@dataclass(frozen=True, slots=True)
class Steps:
    """What a backend computes in its own way.

    :param statistics: (logits [n, v], target [n], first id of this rank, out [3, n]): the maximum,
        the sum of exponentials relative to it, and the target's logit or 0, in float32.
    :param gradient: (logits [n, v], target [n], first id, maximum [n], sum [n]): writes
        softmax - one hot over the logits.
    :param accumulate: (input [n, h], gradient [n, v], sums [v, h]): the ``weight_gradient``.
    """

    statistics: Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor], None]
    gradient: Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor, torch.Tensor], None]
    accumulate: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


class LinearCrossEntropy(torch.autograd.Function):
    """Loss [...] of input [..., h] and weight [v, h]."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        target: torch.Tensor,
        token_weight: torch.Tensor | None,
        group: dist.ProcessGroup | None,
        scale: float,
        main_grad: torch.Tensor | None,
        steps: Steps,
    ) -> torch.Tensor:
        x, index = input.reshape(-1, input.shape[-1]), target.reshape(-1).contiguous()
        tokens, columns = x.shape[0], weight.shape[0]
        first = columns * group.rank() if group is not None else 0
        exact = compute_dtype(input)
        numbers = torch.empty(3, tokens, dtype=exact, device=x.device)
        ofinput, ofweight = ctx.needs_input_grad[:2]
        grad_input = torch.empty_like(x) if ofinput else None
        sums = torch.zeros(weight.shape, dtype=exact, device=x.device) if ofweight else None
        expected = None
        if token_weight is not None:
            expected = token_weight.reshape(-1).to(exact)
        room = x.new_empty(min(tokens, LOSS_CHUNK), columns)
        for start in range(0, tokens, LOSS_CHUNK):
            rows = slice(start, start + LOSS_CHUNK)
            part = x[rows]
            logits = _logits(part, weight, scale, room[: len(part)])
            local = numbers[:, rows] if group_size(group) == 1 else numbers.new_empty(3, len(part))
            steps.statistics(logits, index[rows], first, local)
            if group_size(group) > 1:
                _over_ranks(local, group)
                numbers[:, rows] = local
            if grad_input is None and sums is None:
                continue
            steps.gradient(logits, index[rows], first, local[0], local[1])
            if grad_input is not None:
                torch.mm(logits, weight, out=grad_input[rows])
            if sums is not None:
                if expected is not None:
                    part = _times(part, expected[rows])
                steps.accumulate(part, logits, sums)
        peak, total, predicted = numbers.unbind()
        if ofinput or ofweight:
            ctx.save_for_backward(
                x if ofweight else None,
                *(weight, index, peak, total, grad_input, sums, expected),
            )
            ctx.first, ctx.scale, ctx.main_grad, ctx.steps = first, scale, main_grad, steps
            ctx.shape = input.shape
        # The peak is subtracted before anything is rounded: large logits cancel exactly.
        elsewhere = (index < 0) | (index >= columns * group_size(group))
        return (total.log() - (predicted - peak).masked_fill_(elsewhere, 0.0)).view(target.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_input, sums = ctx.saved_tensors[5:7]
        g = gradients[0].reshape(-1).to(compute_dtype(gradients[0])) * ctx.scale
        of_input = None if grad_input is None else _times(grad_input, g).view(ctx.shape)
        of_weight = None if sums is None else _weight_gradient(ctx, g, sums)
        return of_input, of_weight, None, None, None, None, None, None


def _logits(x: torch.Tensor, weight: torch.Tensor, scale: float, out: torch.Tensor) -> torch.Tensor:
    torch.mm(x, weight.t(), out=out)
    return out if scale == 1.0 else out.mul_(scale)


def _times(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """[n, h] times [n], rounded once."""
    return torch.mul(rows, factors.unsqueeze(-1), out=torch.empty_like(rows))


def _over_ranks(numbers: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Statistics [3, n] of one part of the vocabulary -> of all of it."""
    peak = numbers[0].clone()
    dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    numbers[1].mul_(torch.exp(numbers[0] - peak))
    dist.all_reduce(numbers[1:], group=group)
    numbers[0] = peak


def _weight_gradient(ctx: Any, g: torch.Tensor, sums: torch.Tensor) -> torch.Tensor | None:
    """From the sums, and from the logits of tokens that they do not fit."""
    x, weight, index, peak, total, _, _, expected = ctx.saved_tensors
    factor, others = _common_factor(g, expected)
    result = ctx.main_grad
    if result is None:
        if not len(others):
            return torch.mul(sums, factor, out=torch.empty_like(weight))
        result = sums * factor
    else:
        result.addcmul_(sums, factor.to(sums.dtype))
    missing = g - (factor if expected is None else factor * expected)
    room = x.new_empty(min(len(others), LOSS_CHUNK), weight.shape[0])
    for start in range(0, len(others), LOSS_CHUNK):
        rows = others[start : start + LOSS_CHUNK]
        part = x[rows]
        logits = _logits(part, weight, ctx.scale, room[: len(part)])
        ctx.steps.gradient(logits, index[rows], ctx.first, peak[rows], total[rows])
        ctx.steps.accumulate(_times(part, missing[rows]), logits, result)
    return None if ctx.main_grad is not None else result.to(weight.dtype)


def _common_factor(
    g: torch.Tensor, expected: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``g`` is times ``expected``, and the tokens [m] for which that is not so.

    Where it fits fewer than half of the tokens, the factor is 0, and all with a gradient are named.
    """
    weights = torch.ones_like(g) if expected is None else expected
    largest = g.abs().masked_fill(weights == 0, 0).argmax().view(1)
    factor = (g.gather(0, largest) / weights.gather(0, largest)).view(())
    factor = factor.masked_fill(weights.gather(0, largest).view(()) == 0, 0)
    if isinstance(g, FakeTensor):  # a rehearsal: as in most trainings
        return factor, torch.empty(0, dtype=torch.int64, device=g.device)
    fitting = factor * weights
    limit = _ROUNDING * torch.finfo(g.dtype).eps
    others = ((g - fitting).abs() > limit * fitting.abs()).nonzero().view(-1)
    if 2 * len(others) > len(g):
        return torch.zeros_like(factor), g.nonzero().view(-1)
    return factor, others


def unsupported(input: torch.Tensor, weight: torch.Tensor) -> str | None:
    """Why this way is not for a call, or None."""
    if input.dtype == torch.float16:
        return "gradients without the loss scale are too small for float16"
    if weight.dtype != input.dtype:
        return f"input is {input.dtype}, the weight {weight.dtype}"
    return None


def plain_statistics(
    logits: torch.Tensor, index: torch.Tensor, first: int, out: torch.Tensor
) -> None:
    """:attr:`Steps.statistics` in plain PyTorch."""
    x = logits.to(out.dtype)
    out[0] = x.amax(-1)
    here, place = _here(index, first, x.shape[-1])
    out[2] = x.gather(-1, place).squeeze(-1).masked_fill(~here, 0.0)
    out[1] = (x - out[0].unsqueeze(-1)).exp_().sum(-1)


def plain_gradient(
    logits: torch.Tensor, index: torch.Tensor, first: int, peak: torch.Tensor, total: torch.Tensor
) -> None:
    """:attr:`Steps.gradient` in plain PyTorch."""
    x = (logits.to(peak.dtype) - peak.unsqueeze(-1)).exp_().div_(total.unsqueeze(-1))
    here, place = _here(index, first, x.shape[-1])
    x.scatter_add_(-1, place, -here.unsqueeze(-1).to(x.dtype))
    logits.copy_(x)


def _here(index: torch.Tensor, first: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which targets are in this rank's part [n], and their columns [n, 1]."""
    here = (index >= first) & (index < first + columns)
    return here, (index - first).masked_fill(~here, 0).unsqueeze(-1)
