"""The gradient of a tied weight that is in ``main_grad`` already is not added there once more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, Patch, PatchContext

_FUNCTION = "LinearWithGradAccumulationAndAsyncCommunication"
#: On autograd's context: the embedding passes the placeholder of this forward pass.
_ANSWERED = "accel_bridge_answered"


def _make_forward(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    weights = context.argument("weight")

    @functools.wraps(upstream)
    def forward(*args: Any, **kwargs: Any) -> Any:
        """As upstream; remembers whether the embedding of this forward pass shares the weight."""
        from accel_bridge.patches.modules.main_grad import embedding_answers

        setattr(args[0], _ANSWERED, embedding_answers(weights.get(args, kwargs)))
        return upstream(*args, **kwargs)

    return staticmethod(forward)


def _make_backward(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    @functools.wraps(upstream)
    def backward(ctx: Any, grad_output: Any) -> Any:
        """As upstream; for a gradient that was added in place, a tensor without memory."""
        from accel_bridge.libraries.main_grad import placeholder

        results = upstream(ctx, grad_output)
        if not ctx.gradient_accumulation_fusion or results[1] is None:
            return results
        weight = ctx.saved_tensors[1]
        if not getattr(weight, "grad_added_to_main_grad", False):
            return results
        answer = None if getattr(ctx, _ANSWERED, False) else placeholder(weight, weight.main_grad)
        return (results[0], answer, *results[2:])

    return staticmethod(backward)


def _patch(name: str, uses: tuple[str, ...], make: Callable[[PatchContext], Any]) -> Patch:
    return megatron_patch(
        id=f"weight-gradient-{name}",
        target=f"megatron.core.tensor_parallel.layers:{_FUNCTION}.{name}",
        kind=Kind.WRAP,
        make=make,
        why="with --gradient-accumulation-fusion a tied weight's gradient is zeros of the whole "
        "vocabulary, which are then added to what is already complete",
        removed_when="upstream leaves the gradient of a tied weight out when it was added in place",
        loses="about 3% of a step of models whose embedding is tied to the output layer",
        uses=uses,
        after=() if name == "forward" else ("weight-gradient-forward",),
        needs=() if name == "forward" else ("weight-gradient-forward",),
    )


PATCHES = (
    _patch("forward", ("weight",), _make_forward),
    _patch("backward", (), _make_backward),
)
