"""What autograd gets for a weight's gradient that is already in ``main_grad``.

Frameworks hook autograd's gradient of a weight and, with overlap, start the communication of its
bucket there. The hook must therefore run after the last sum of the weight's gradient, on autograd's
own thread: a tensor has to pass through autograd, even when nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

import torch

from accel_bridge.kernels import WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel

#: On a weight: its ``main_grad``, and that memory as a gradient of the weight.
_BORROWED: Final = "accel_bridge_borrowed"
#: On a weight: no hook waits for a gradient that is in its ``main_grad``.
_NO_PLACEHOLDER: Final = "accel_bridge_no_placeholder"
_HOOKS: Final = attrgetter("_backward_hooks")
_LATER_HOOKS: Final = attrgetter("_post_accumulate_grad_hooks")


def needs_no_placeholder(weight: Any) -> None:
    """Let :func:`placeholder` be None for a weight whose framework starts nothing in its hook."""
    setattr(weight, _NO_PLACEHOLDER, True)


def placeholder(weight: Any, main_grad: torch.Tensor) -> torch.Tensor | None:
    """A tensor of the weight's shape that takes no memory; None if nobody needs one.

    Megatron marks weights with several uses (tied embeddings) by ``zero_out_wgrad``. Autograd sums
    the gradients of these uses, and Megatron adds the sum to ``main_grad``: the placeholder must
    be zeros.

    :param weight: [m, k]; the framework asks for in-place sums by ``grad_added_to_main_grad``.
    :param main_grad: [m, k], the float32 sums.
    """
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    if getattr(weight, "zero_out_wgrad", False):
        return expanded_zero(list(weight.shape), weight.dtype, weight.device)
    if are_unwatched((weight,)):
        return None
    if weight.grad is not None and _shared(weight.grad, main_grad):
        # Nobody took the last placeholder away: autograd would now add to main_grad's memory.
        return None
    return borrowed(weight, main_grad)


def are_unwatched(weights: Iterable[Any]) -> bool:
    """Whether nobody has to be told when the weights' gradients are in their ``main_grad``.

    It looks by C functions: there may be hundreds of experts.
    """
    weights = tuple(weights)
    return (
        all(_NO_PLACEHOLDER in own for own in map(vars, weights))
        and not any(map(_HOOKS, weights))
        and not any(map(_LATER_HOOKS, weights))
        and not any(own.get("zero_out_wgrad") for own in map(vars, weights))
    )


def add_to(
    main_grad: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, replaces: bool
) -> None:
    """``main_grad += gradient^T @ x``, or ``=``."""
    if replaces and main_grad.dtype == x.dtype == gradient.dtype:
        torch.mm(gradient.t(), x, out=main_grad)
        return
    kernel(WEIGHT_GRADIENT)(x, gradient, main_grad, accumulate=not replaces)


def borrowed(weight: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
    """The memory of ``main_grad``, whatever it holds, as a gradient that nobody reads.

    Hooks run on a stream of their own: tensors of each weight's size would stay allocated until
    that stream has caught up.
    """
    own = weight.__dict__
    if "__fsdp_param__" in own:  # its sums are made anew for each backward pass
        return _view(weight, main_grad)
    known = own.get(_BORROWED)
    if known is None or known[0] is not main_grad:
        known = own[_BORROWED] = (main_grad, _view(weight, main_grad))
    # A tensor of its own: autograd would copy one that somebody else holds.
    found: torch.Tensor = known[1].detach()
    return found


def _view(weight: torch.Tensor, main_grad: torch.Tensor) -> torch.Tensor:
    size = weight.numel()
    if main_grad.is_contiguous() and main_grad.nbytes >= size * weight.element_size():
        return main_grad.view(-1).view(weight.dtype)[:size].view(weight.shape)
    return expanded_zero(list(weight.shape), weight.dtype, weight.device)


def expanded_zero(shape: list[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Zeros of any shape in the memory of one."""
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """Transformer Engine's function: a gradient [m, k] that nobody reads, here without memory.

    :param zero: it is always zeros.
    """
    return expanded_zero(shape, dtype, "cuda")


def _shared(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
