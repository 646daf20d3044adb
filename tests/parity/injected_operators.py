"""Plugins with one operator that computes wrongly, chosen by ``INJECTED_OPERATOR``.

Unlike those of :mod:`parity.injected`, most are inside of a kernel: the program calls what it
should, with the right arguments, and gets other numbers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from accel_bridge import Backend, hookimpl
from accel_bridge.patching import Kind, Patch, PatchContext

#: A kernel's result -> what is wrong with it.
KERNELS: dict[str, tuple[str, ...]] = {
    "attention": ("attention",),
    "norm": ("norm_forward", "rms_norm", "layer_norm"),
    "rotary": ("rotary",),
    "permutation": ("token_permute",),
    "adamw": ("adamw",),
    "fp8-scale": ("scaled_matmul",),
}


def wrong_result(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel ``function``, one percent of whose first result is too much, or out of order."""

    @functools.wraps(function)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        if name == "rotary":
            tensor, cos, sin = args
            return function(tensor, cos, -sin, **kwargs)
        result = function(*args, **kwargs)
        if name == "adamw":
            for parameter in args[0]:
                parameter.mul_(1.0001)
            return result
        first, *rest = result if isinstance(result, tuple) else (result,)
        first = first.flip(0) if name == "permutation" else first * 1.01
        return (first, *rest) if isinstance(result, tuple) else first

    return wrong


def gate(context: PatchContext) -> Any:
    """The gated half is one percent too large."""
    swiglu = context.original

    def wrong(y: Any) -> Any:
        return swiglu(y) * 1.01

    return wrong


def router(context: PatchContext) -> Any:
    """The scores are one percent too large."""
    route = context.original

    def wrong(logits: Any, *args: Any, **kwargs: Any) -> Any:
        return route(logits * 1.01, *args, **kwargs)

    return wrong


def cross_entropy(context: PatchContext) -> Any:
    """The loss is that of a temperature of 1 / 1.01."""
    loss = context.original

    def wrong(vocab_parallel_logits: Any, *args: Any, **kwargs: Any) -> Any:
        return loss(vocab_parallel_logits * 1.01, *args, **kwargs)

    return wrong


def embedding(context: PatchContext) -> Any:
    """The rows are one percent too large."""
    forward = context.original

    def wrong(self: Any, input_: Any) -> Any:
        return forward(self, input_) * 1.01

    return wrong


def reduced_twice(context: PatchContext) -> Any:
    """Gradients are scaled once more after they are reduced."""
    finish = context.original

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        finish(self, *args, **kwargs)
        for parameter in self.module.parameters():
            parameter.main_grad.mul_(1.01)

    return wrong


def other_reduction(context: PatchContext) -> Any:
    """The sum over tensor-parallel ranks is a maximum."""
    forward = context.original

    def wrong(self: Any, x: Any) -> Any:
        import torch

        honest = torch.distributed.all_reduce

        def largest(tensor: Any, op: Any = None, **options: Any) -> Any:
            return honest(tensor, op=torch.distributed.ReduceOp.MAX, **options)

        torch.distributed.all_reduce = largest
        try:
            return forward(self, x)
        finally:
            torch.distributed.all_reduce = honest

    return wrong


#: Name -> (target, what is made).
PATCHES: dict[str, tuple[str, Callable[[PatchContext], Any]]] = {
    "swiglu": ("megatron.core.fusions.fused_bias_swiglu:swiglu", gate),
    "router": (
        "megatron.core.transformer.moe.moe_utils:topk_routing_with_score_function",
        router,
    ),
    "cross-entropy": (
        "megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
        cross_entropy,
    ),
    "embedding": ("megatron.core.tensor_parallel.layers:VocabParallelEmbedding.forward", embedding),
    "gradient-reduction": (
        "megatron.core.distributed.distributed_data_parallel:"
        "DistributedDataParallel.finish_grad_sync",
        reduced_twice,
    ),
    "collective": (
        "megatron.core.extensions.transformer_engine:TERowParallelLinear.forward",
        other_reduction,
    ),
}

# Our own patches of the same functions.
AFTER = {"cross-entropy": ("cross-entropy",), "embedding": ("embedding-gradient",)}


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """The error that the variable names."""
    name = os.environ["INJECTED_OPERATOR"]
    if name in KERNELS:
        for kernel in backend.kernels():
            if kernel.contract.name in KERNELS[name]:
                kernel._function = wrong_result(name, kernel.function)
        return []
    target, make = PATCHES[name]
    return [
        Patch(
            id="injected",
            target=target,
            kind=Kind.WRAP,
            make=make,
            why="an injected fault",
            upstream="tests/parity/injected_operators.py",
            removed_when="never: it is a test of the tests",
            loses="nothing",
            after=AFTER.get(name, ()),
        )
    ]
