"""What autograd gets for a weight's gradient that is already in ``main_grad``.

Megatron's hook on a weight takes autograd's gradient and, with overlap, starts the communication of
its bucket. It must therefore run after the last sum of the weight's gradient, on autograd's own
thread: a tensor has to pass through autograd, even when nobody reads it.
"""

from __future__ import annotations

from typing import Any

import torch

#: On a tied weight, between the forward passes of the embedding and of the output layer.
_ANSWERS = "accel_bridge_embedding_answers"
_WATCHED = "accel_bridge_watched"


def placeholder(weight: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """A tensor of the weight's shape that takes no memory; None if nobody needs one.

    Megatron marks weights with several uses (tied embeddings) by ``zero_out_wgrad``. Autograd sums
    the gradients of these uses, and Megatron adds the sum to ``main_grad``: the placeholder must
    be zeros.
    """
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    if getattr(weight, "zero_out_wgrad", False):
        return torch.zeros((), dtype=dtype, device=weight.device).expand(weight.shape)
    return _borrowed(weight, dtype)


def _borrowed(weight: Any, dtype: torch.dtype) -> torch.Tensor:
    """The memory of ``main_grad``, whatever it holds, as a gradient that nobody reads.

    Megatron's hooks run on their own stream: tensors of each weight's size would stay allocated
    until that stream has caught up.
    """
    whole: torch.Tensor = weight.main_grad.view(-1).view(dtype)
    return whole[: weight.numel()].view(weight.shape)


def answer_for_output_layer(weight: Any) -> None:
    """Called before the embedding's forward pass: for a tied weight, only it passes a placeholder.

    Its backward pass is the last, so Megatron's hook waits for all of the gradient.
    """
    if not getattr(weight, "zero_out_wgrad", False):
        return
    setattr(weight, _ANSWERS, True)
    if not hasattr(weight, _WATCHED):
        setattr(weight, _WATCHED, True)
        _leave_zeros_out(weight)


def embedding_answers(weight: Any) -> bool:
    """Whether the embedding's forward pass came before this one of the output layer; reads once."""
    return bool(vars(weight).pop(_ANSWERS, False))


def _leave_zeros_out(weight: Any) -> None:
    """Let Megatron's hook on a tied weight skip a gradient that is only a placeholder.

    A placeholder of zeros has no strides. With a gradient from any other use, the sum is a separate
    tensor, which Megatron adds as usual.
    """
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]

    def before(gradient: torch.Tensor) -> torch.Tensor | None:
        if any(gradient.stride()):
            return None
        weight.zero_out_wgrad = False
        return _borrowed(weight, gradient.dtype)

    def after(*unused: object) -> None:
        weight.zero_out_wgrad = True

    weight.register_hook(before)
    # Megatron registered its hook on this node before training began: this one runs after it.
    node.register_hook(after)
