"""Which use of a tied weight answers for its gradient, and what Megatron's hook then skips."""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.libraries.main_grad import borrowed, placeholder

_WATCHED = "accel_bridge_watched"


def expect_output_layer(weight: Any) -> None:
    """Called before the embedding's forward pass; lets the backward pass of a tied weight say whose
    gradient came first: the output layer then sets Megatron's mark, see :func:`answer`.
    """
    if not getattr(weight, "zero_out_wgrad", False):
        return
    weight.grad_added_to_main_grad = False
    if not hasattr(weight, _WATCHED):
        setattr(weight, _WATCHED, True)
        _leave_zeros_out(weight)


def answer(weight: Any, main_grad: torch.Tensor) -> torch.Tensor | None:
    """What the embedding passes to autograd: nothing where the output layer has passed zeros.

    Megatron's hook runs after both, and a sum of two placeholders would take memory.
    """
    tied = getattr(weight, "zero_out_wgrad", False)
    if tied and weight.grad_added_to_main_grad:
        return None
    return placeholder(weight, main_grad)


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
        return borrowed(weight, weight.main_grad)

    def after(*unused: object) -> None:
        weight.zero_out_wgrad = True

    weight.register_hook(before)
    # Megatron registered its hook on this node before training began: this one runs after it.
    node.register_hook(after)
