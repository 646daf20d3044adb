"""What autograd gets for an output layer's gradient that is in ``main_grad`` already."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


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
        return (results[0], placeholder(weight, weight.main_grad), *results[2:])

    return staticmethod(backward)


PATCHES = (
    megatron_patch(
        id="weight-gradient",
        target="megatron.core.tensor_parallel.layers:"
        "LinearWithGradAccumulationAndAsyncCommunication.backward",
        kind=Kind.WRAP,
        make=_make_backward,
        why="with --gradient-accumulation-fusion autograd gets a tensor of the weight's size that "
        "nobody reads; a tied weight's is zeros, which are then added to what is already complete",
        removed_when="upstream leaves the gradient of a tied weight out when it was added in place",
        loses="memory of the output layer's size, and about 3% of a step of models whose embedding "
        "is tied to it",
    ),
)
