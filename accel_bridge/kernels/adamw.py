"""Contract ``adamw``: one optimizer step over many tensors, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accel_bridge.kernels._contract import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWOptions:
    """The numbers of one AdamW step.

    :param step: number of this step; the first is 1.
    :param lr: learning rate; also scales the decay.
    :param betas: decay of m and v per step.
    :param eps: added to the square root, outside it.
    :param weight_decay: share of the parameter subtracted per unit of lr; not part of m and v.
    """

    step: int
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


@torch.no_grad()
def adamw_reference(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    options: AdamWOptions,
    scale: torch.Tensor | None = None,
    copies: Sequence[torch.Tensor] | None = None,
) -> None:
    """Adam with decoupled weight decay; changes parameters and moments in place.

    ``p *= 1 - lr * wd; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
    p -= lr / (1 - b1^step) * m / (sqrt(v / (1 - b2^step)) + eps)``

    :param parameters: float32 (float64) main parameters, any shapes.
    :param gradients: as parameters, one each, in the parameters' dtype.
    :param first_moments: m, as parameters, one each.
    :param second_moments: v, as parameters, one each.
    :param options: see :class:`AdamWOptions`.
    :param scale: factor of the gradients, one float32 element on their device; None is 1. A kernel
        may leave the gradients scaled.
    :param copies: of the parameters, one each, in another dtype; written, too. None for none.
    """
    if scale is not None:
        gradients = [gradient * scale.reshape(()).to(gradient.dtype) for gradient in gradients]
    first, second = options.betas
    rate = options.lr / (1 - first**options.step)
    correction = (1 - second**options.step) ** 0.5
    groups = zip(parameters, gradients, first_moments, second_moments, strict=True)
    for parameter, gradient, moment, square in groups:
        parameter.mul_(1 - options.lr * options.weight_decay)
        moment.mul_(first).add_(gradient, alpha=1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        parameter.addcdiv_(moment, (square.sqrt() / correction).add_(options.eps), value=-rate)
    write_copies(parameters, copies)


def scale_in_place(gradients: Sequence[torch.Tensor], scale: torch.Tensor | None) -> None:
    """Scale the gradients for an operator that has no ``scale`` of its own."""
    if scale is not None and gradients:
        torch._foreach_mul_(list(gradients), scale.reshape(()))


def write_copies(parameters: Sequence[torch.Tensor], copies: Sequence[torch.Tensor] | None) -> None:
    """Write the parameters to their copies for an operator that does not."""
    if copies:
        torch._foreach_copy_(list(copies), list(parameters))


ADAMW = Contract(
    name="adamw",
    reference=adamw_reference,
    formula="p -= lr * (m_hat / (sqrt(v_hat) + eps) + wd * p)",
    source="Loshchilov and Hutter 2017, arXiv:1711.05101; semantics of torch.optim.AdamW",
)
