"""Weight gradients that are added in place to ``main_grad``, and what autograd gets instead.

Frameworks hook autograd's gradient of a weight and, with overlap, start the communication of its
bucket there. The hook must therefore run after the last sum of the weight's gradient, on autograd's
own thread: a tensor has to pass through autograd, even when nobody reads it.

Legend: ... any leading dimensions (tokens), k input size, m output size.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from accel_bridge.kernels import WEIGHT_GRADIENT
from accel_bridge.libraries.serving import kernel

#: Gradients of each shape and dtype that nobody reads.
_dummy_wgrads: Final[dict[tuple[int, int, torch.dtype], torch.Tensor]] = {}


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """One shared tensor of this shape and dtype: zeros, or whatever it holds."""
    assert len(shape) == 2
    key = (shape[0], shape[1], dtype)
    if key not in _dummy_wgrads:
        _dummy_wgrads[key] = torch.empty(shape, dtype=dtype, device="cuda")
    if zero:
        _dummy_wgrads[key].zero_()
    return _dummy_wgrads[key].detach()


def main_grad_of(weight: Any) -> torch.Tensor | None:
    """The float32 sums of the weight's gradient; None where nobody has made any."""
    # Fully sharded data parallelism makes the sums when the backward pass needs them.
    if hasattr(weight, "__fsdp_param__"):
        sums: torch.Tensor = weight.get_main_grad()
        return sums
    return getattr(weight, "main_grad", None)


def accumulate(
    x: torch.Tensor, gradient: torch.Tensor, main_grad: torch.Tensor, overwrite: bool
) -> None:
    """``main_grad += gradient^T @ x``, or ``=`` with ``overwrite``.

    :param x: [..., k].
    :param gradient: [..., m].
    :param main_grad: [m, k], changed in place.
    """
    if overwrite:
        main_grad.zero_()
    if x.numel():
        kernel(WEIGHT_GRADIENT)(x, gradient, main_grad)


def placeholder(weight: Any, main_grad: torch.Tensor) -> torch.Tensor | None:
    """A tensor of the weight's shape that takes no memory; None if nobody needs one.

    Megatron marks weights with several uses (tied embeddings) by ``zero_out_wgrad``. Autograd sums
    the gradients of these uses, and Megatron adds the sum to ``main_grad``: the placeholder must
    be zeros.
    """
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    dtype: torch.dtype = weight.dtype
    if getattr(weight, "zero_out_wgrad", False):
        return torch.zeros((), dtype=dtype, device=weight.device).expand(weight.shape)
    if weight.grad is not None and _shared(weight.grad, main_grad):
        # Nobody took the last placeholder away: autograd would now add to main_grad's memory.
        return None
    size = weight.numel()
    if main_grad.is_contiguous() and main_grad.nbytes >= size * dtype.itemsize:
        # The memory of main_grad, whatever it holds: hooks run on their own stream, and tensors of
        # each weight's size would stay allocated until that stream has caught up.
        return main_grad.view(-1).view(dtype)[:size].view(weight.shape)
    return get_dummy_wgrad(list(weight.shape), dtype)


def _shared(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
