"""A vocabulary embedding that adds its weight gradient directly to ``main_grad``.

Legend: b batch, s sequence, v rows of the embedding on this tensor-parallel rank, h hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import (
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch.nn import functional

from accel_bridge.libraries.main_grad import borrowed, placeholder

# Which use of a tied weight answers for its gradient, and what Megatron's hook then skips.

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


#: A kernel that adds a gradient to the float32 sums in place.
Accumulate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


class _Embedding(torch.autograd.Function):
    """indices [b, s], weight [v, h] -> [b, s, h]; zeros for indices outside [0, v)."""

    @staticmethod
    def forward(
        ctx: Any, indices: torch.Tensor, weight: torch.Tensor, kernel: Accumulate, split: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(indices, weight)
        # Not through save_for_backward: it is changed in place between forward and backward.
        ctx.kernel, ctx.main_grad = kernel, weight.main_grad  # type: ignore[attr-defined]
        if not split:
            return functional.embedding(indices, weight)
        outside = (indices < 0) | (indices >= weight.shape[0])
        rows = functional.embedding(indices.masked_fill(outside, 0), weight)
        return rows.masked_fill_(outside.unsqueeze(-1), 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        indices, weight = ctx.saved_tensors
        weight.main_grad = ctx.main_grad
        accumulate: Accumulate = ctx.kernel
        accumulate(indices, gradients[0], ctx.main_grad)
        return None, answer(weight, ctx.main_grad), None, None


def is_fused(module: Any) -> bool:
    """Whether the gradient of a ``VocabParallelEmbedding`` can go directly into ``main_grad``.

    Not for tables that something else shards or gathers.
    """
    weight = module.weight
    return (
        torch.is_grad_enabled()
        and weight.requires_grad
        and module.config.gradient_accumulation_fusion
        and hasattr(weight, "grad_added_to_main_grad")
        and hasattr(weight, "main_grad")
        and not hasattr(weight, "__fsdp_param__")
        and getattr(module, "gtp_remat_size", 1) == 1
    )


def embedding_forward(module: Any, input_: torch.Tensor, kernel: Accumulate) -> torch.Tensor:
    """Stands in for ``VocabParallelEmbedding.forward`` where :func:`is_fused`.

    :param input_: token ids [b, s] of the whole vocabulary.
    :returns: [b, s, h]; with ``reduce_scatter_embeddings`` this rank's part of [s, b, h].
    """
    group = module.tp_group
    split = group.size() > 1
    expect_output_layer(module.weight)
    indices = input_ - module.vocab_start_index if split else input_
    rows: torch.Tensor = _Embedding.apply(indices, module.weight, kernel, split)
    if module.reduce_scatter_embeddings:
        rows = rows.transpose(0, 1).contiguous()
        return reduce_scatter_to_sequence_parallel_region(rows, group=group)  # type: ignore[no-any-return]
    if split:
        return reduce_from_tensor_model_parallel_region(rows, group=group)  # type: ignore[no-any-return]
    return rows
