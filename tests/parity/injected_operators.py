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
from accel_bridge.patching import Patch, PatchContext
from parity.injected import ROW_PARALLEL, Make, patch, reduced_otherwise

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


def one_percent(larger: str) -> Make:
    """The argument of that name is one percent too large, or the ``result``."""

    def make(context: PatchContext) -> Any:
        assert context.signature is not None

        def wrong(*args: Any, **kwargs: Any) -> Any:
            call = context.signature.bind(*args, **kwargs)  # type: ignore[union-attr]
            if larger != "result":
                call.arguments[larger] = call.arguments[larger] * 1.01
            found = context.original(*call.args, **call.kwargs)
            return found * 1.01 if larger == "result" else found

        return wrong

    return make


def reduced_twice(context: PatchContext) -> Any:
    """Gradients are scaled once more after they are reduced."""
    finish = context.original

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        finish(self, *args, **kwargs)
        for parameter in self.module.parameters():
            parameter.main_grad.mul_(1.01)

    return wrong


def largest(honest: Callable[..., Any]) -> Callable[..., Any]:
    """The sum over tensor-parallel ranks is a maximum."""

    def wrong(tensor: Any, op: Any = None, **options: Any) -> Any:
        import torch

        return honest(tensor, op=torch.distributed.ReduceOp.MAX, **options)

    return wrong


#: Name -> (target, what is made, our own patches of the same functions).
PATCHES: dict[str, tuple[str, Make, tuple[str, ...]]] = {
    "swiglu": ("megatron.core.fusions.fused_bias_swiglu:swiglu", one_percent("result"), ()),
    "router": (
        "megatron.core.transformer.moe.moe_utils:topk_routing_with_score_function",
        one_percent("logits"),
        (),
    ),
    # The loss is that of a temperature of 1 / 1.01.
    "cross-entropy": (
        "megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
        one_percent("vocab_parallel_logits"),
        ("cross-entropy",),
    ),
    "embedding": (
        "megatron.core.tensor_parallel.layers:VocabParallelEmbedding.forward",
        one_percent("result"),
        ("embedding-gradient",),
    ),
    "gradient-reduction": (
        "megatron.core.distributed.distributed_data_parallel:"
        "DistributedDataParallel.finish_grad_sync",
        reduced_twice,
        (),
    ),
    "collective": (ROW_PARALLEL, reduced_otherwise(largest), ()),
}


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """The error that the variable names."""
    name = os.environ["INJECTED_OPERATOR"]
    if name in KERNELS:
        for kernel in backend.kernels():
            if kernel.contract.name in KERNELS[name]:
                kernel._function = wrong_result(name, kernel.function)
        return []
    target, make, after = PATCHES[name]
    return [patch(target, make, *after)]
