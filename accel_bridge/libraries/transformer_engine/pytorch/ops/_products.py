"""A linear layer's three products on ordinary tensors.

Legend: ... any leading dimensions (tokens), k input size, m output size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from ..module._main_grad import accumulate, main_grad_of


def _scaled(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    """``alpha * a @ b`` in one product."""
    if alpha == 1.0:
        return a @ b
    return torch.addmm(a.new_empty(()), a, b, beta=0, alpha=alpha)


def output(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    alpha: float,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """``alpha * x @ weight^T + bias``, added to ``out`` in place if there is one.

    :param x: [..., k]. :param weight: [m, k]. :param bias: [m]. :param out: [..., m].
    """
    if out is None and alpha == 1.0:
        return functional.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if out is None:
        result = _scaled(rows, weight.t(), alpha).view(*x.shape[:-1], weight.shape[0])
    elif out.is_contiguous():
        out.view(-1, weight.shape[0]).addmm_(rows, weight.t(), alpha=alpha)
        result = out
    else:
        result = out.add_(functional.linear(x, weight), alpha=alpha)
    return result if bias is None else result.add_(bias)


def grad_input(
    grad_output: torch.Tensor, weight: torch.Tensor, alpha: float, out: torch.Tensor | None
) -> torch.Tensor:
    """``alpha * grad_output @ weight``, added to ``out`` in place if there is one.

    :param grad_output: [..., m]. :param weight: [m, k]. :param out: [..., k].
    """
    if out is None and alpha == 1.0:
        return grad_output.matmul(weight)
    rows = grad_output.reshape(-1, grad_output.shape[-1])
    if out is None:
        return _scaled(rows, weight, alpha).view(*grad_output.shape[:-1], weight.shape[1])
    if not out.is_contiguous():
        return out.add_(grad_output.matmul(weight), alpha=alpha)
    out.view(-1, weight.shape[1]).addmm_(rows, weight, alpha=alpha)
    return out


def grad_weight(
    x: torch.Tensor,
    grad_output: torch.Tensor,
    alpha: float,
    main_grad: torch.Tensor | None,
    overwrite: bool,
) -> torch.Tensor | None:
    """``alpha * grad_output^T @ x``: [m, k]; None if it went into ``main_grad``.

    :param x: [..., k]. :param grad_output: [..., m].
    :param main_grad: [m, k], float32 as a rule; changed in place.
    :param overwrite: instead of adding to main_grad.
    """
    if main_grad is None:
        rows = grad_output.reshape(-1, grad_output.shape[-1])
        return _scaled(rows.t(), x.reshape(-1, x.shape[-1]), alpha)
    accumulate(x, grad_output if alpha == 1.0 else grad_output * alpha, main_grad, overwrite)
    return None


def collected(weight: Any) -> tuple[torch.Tensor, bool]:
    """The weight's ``main_grad``, and whether to overwrite it.

    :raises RuntimeError: it has none.
    """
    main_grad = main_grad_of(weight)
    if main_grad is None:
        raise RuntimeError(
            "the operation has accumulate_into_main_grad=True, but its weight has no main_grad"
        )
    return main_grad.detach(), getattr(weight, "overwrite_main_grad", False)
