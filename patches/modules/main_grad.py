"""Which use of a tied weight answers for its gradient, and what Megatron's hook then skips."""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.libraries.main_grad import borrowed

#: On a tied weight, between the forward passes of the embedding and of the output layer.
_ANSWERS = "accel_bridge_embedding_answers"
_WATCHED = "accel_bridge_watched"


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
        return borrowed(weight, weight.main_grad)

    def after(*unused: object) -> None:
        weight.zero_out_wgrad = True

    weight.register_hook(before)
    # Megatron registered its hook on this node before training began: this one runs after it.
    node.register_hook(after)
