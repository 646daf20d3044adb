"""Plugins with one injected fault each, chosen by the variable ``INJECTED_ERROR``.

They are what errors of a backend or of a patch look like in training: everything runs, the loss
falls, and the numbers are wrong. Each is in the third layer only, where the code allows it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from accel_bridge import Backend, hookimpl
from accel_bridge.patching import Kind, Patch, PatchContext

#: Megatron counts layers from 1.
LAYER = 3

EXTENSIONS = "megatron.core.extensions.transformer_engine"
ATTENTION = f"{EXTENSIONS}:TEDotProductAttention.forward"
ROW_PARALLEL = f"{EXTENSIONS}:TERowParallelLinear.forward"
Make = Callable[[PatchContext], Any]


def wrong_scale(context: PatchContext) -> Any:
    """The scores of one layer are 10% too large."""
    attend = context.original

    def forward(self: Any, query: Any, *rest: Any, **named: Any) -> Any:
        if self.layer_number == LAYER:
            query = query * 1.1
        return attend(self, query, *rest, **named)

    return forward


def transposed_layout(context: PatchContext) -> Any:
    """The heads of one layer's result are written as [.., d, n] and read as [.., n, d]."""
    attend = context.original

    def forward(self: Any, query: Any, *rest: Any, **named: Any) -> Any:
        output = attend(self, query, *rest, **named)
        if self.layer_number != LAYER:
            return output
        s, b, n, d = query.shape
        return output.view(s, b, n, d).transpose(2, 3).reshape(s, b, n * d)

    return forward


def mask_off_by_one(context: PatchContext) -> Any:
    """Queries see the next token."""

    def shifted(causal: Any, window: Any, bottom_right: Any) -> Any:
        from accel_bridge.kernels import AttentionMask

        return AttentionMask(window=(None, 1))

    return shifted


def dropped_norm(context: PatchContext) -> Any:
    """The norms before attention and MLP are left out, as with the wrong layer spec."""

    def forward(self: Any, x: Any) -> Any:
        import torch

        output = torch.nn.functional.linear(x, self.weight)
        return (output, self.bias) if self.te_return_bias else (output + self.bias, None)

    return forward


def swapped_rotary_halves(context: PatchContext) -> Any:
    """[x1, x2] is rotated to [x2, -x1] instead of [-x2, x1]."""
    rotate = context.original

    def wrong(t: Any, freqs: Any, *rest: Any, **named: Any) -> Any:
        return rotate(t, -freqs, *rest, **named)

    return wrong


def reduced_otherwise(reduce: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Make:
    """In a row-parallel layer, what ``reduce`` makes of ``all_reduce`` takes its place."""

    def make(context: PatchContext) -> Any:
        def wrong(self: Any, x: Any) -> Any:
            import torch

            honest = torch.distributed.all_reduce
            torch.distributed.all_reduce = reduce(honest)
            try:
                return context.original(self, x)
            finally:
                torch.distributed.all_reduce = honest

        return wrong

    return make


def wrong_rng(context: PatchContext) -> Any:
    """Dropout of attention weights draws the same numbers on every tensor-parallel rank."""
    attend = context.original

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.fused_attention.attention_dropout_ctx = contextlib.nullcontext
        return attend(self, *args, **kwargs)

    return forward


def low_precision_sums(context: PatchContext) -> Any:
    """Gradients of one kind of weight are summed over micro batches in bfloat16."""
    make = context.original

    def make_hook(self: Any, param: Any) -> Callable[..., None]:
        hook = make(self, param)

        def rounded(*unused: Any) -> None:
            hook(*unused)
            if param.shape[-1] == 4 * param.shape[0]:  # linear_fc2.weight
                param.main_grad.copy_(param.main_grad.bfloat16())

        return rounded

    return make_hook


def _is_third(module: Any, seen: list[Any]) -> bool:
    """Whether it is that of the third layer: modules are seen in their order."""
    if module not in seen:
        seen.append(module)
    return seen.index(module) == LAYER - 1


def small_scale(context: PatchContext) -> Any:
    """The MLP's output of one layer is 1% too large."""
    forward, seen = context.original, list[Any]()

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        output, bias = forward(self, *args, **kwargs)
        return output * (1.01 if _is_third(self, seen) else 1.0), bias

    return wrong


def low_precision_terms(context: PatchContext) -> Any:
    """One GEMM adds its terms in bfloat16."""
    forward, seen = context.original, list[Any]()

    def wrong(self: Any, x: Any) -> Any:
        output, bias = forward(self, x)
        if self.weight.shape[1] < 1024 or not _is_third(self, seen):
            return output, bias
        total = 0
        for place in range(x.shape[-1]):
            total = total + x[..., place : place + 1] * self.weight[:, place]
        return total, bias

    return wrong


def late_rotary_base(context: PatchContext) -> Any:
    """Positions after 4096 are rotated by a base that is 0.1% too large."""
    forward = context.original

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        angles = forward(self, *args, **kwargs).clone()
        half = angles.shape[-1] // 2
        slower = 1.001 ** -(torch.arange(half, device=angles.device) / half)
        angles[4096:] *= torch.cat((slower, slower))
        return angles

    return wrong


#: Name -> (target, what is made).
FAULTS: dict[str, tuple[str, Make]] = {
    "wrong-scale": (ATTENTION, wrong_scale),
    "transposed-layout": (ATTENTION, transposed_layout),
    "mask-off-by-one": (
        "accel_bridge.libraries.transformer_engine_torch.attention:mask_of",
        mask_off_by_one,
    ),
    "dropped-norm": (f"{EXTENSIONS}:TELayerNormColumnParallelLinear.forward", dropped_norm),
    "swapped-rotary-halves": (f"{EXTENSIONS}:fused_apply_rotary_pos_emb", swapped_rotary_halves),
    # Row-parallel layers return their rank's part of the sum.
    "missing-all-reduce": (ROW_PARALLEL, reduced_otherwise(lambda _: lambda *args, **more: None)),
    "wrong-rng": (ATTENTION, wrong_rng),
    "low-precision-sums": (
        "megatron.core.distributed.distributed_data_parallel:"
        "DistributedDataParallel._make_backward_post_hook",
        low_precision_sums,
    ),
}
#: The same, of errors that only measured limits find (tests/conformance/parity/limits.py).
SMALL: dict[str, tuple[str, Make]] = {
    "scale": ("megatron.core.transformer.mlp:MLP.forward", small_scale),
    "accumulation": (f"{EXTENSIONS}:TERowParallelLinear.forward", low_precision_terms),
    "rotary-base": (
        "megatron.core.models.common.embeddings.rotary_pos_embedding:RotaryEmbedding.forward",
        late_rotary_base,
    ),
}
#: Patches that must be in place before.
AFTER = {low_precision_sums: ("gradient-placeholders",), small_scale: ("unfused-glu",)}


def patch(target: str, make: Make, *after: str) -> Patch:
    """An injected fault as a patch."""
    return Patch(
        id="injected",
        target=target,
        kind=Kind.WRAP,
        make=make,
        why="an injected fault",
        upstream="tests/parity/injected.py",
        removed_when="never: it is a test of the tests",
        loses="nothing",
        after=after,
    )


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """The injected fault that the variable names."""
    target, make = {**FAULTS, **SMALL}[os.environ["INJECTED_ERROR"]]
    return [patch(target, make, *AFTER.get(make, ()))]
