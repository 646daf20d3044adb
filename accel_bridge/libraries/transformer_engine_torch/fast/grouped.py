"""``GroupedLinear.forward`` of one rank: the GEMMs of all groups, one after another or at once.

Legend: t rows sorted by group, e groups, k input size, m output size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.kernels import GROUPED_MATMUL, GROUPED_WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.main_grad import placeholder
from accel_bridge.libraries.transformer_engine_torch._tensors import in_one_storage, stacked
from accel_bridge.libraries.transformer_engine_torch.fast._conditions import (
    interferes,
    is_alone,
    is_plain,
    needs_fp8,
)
from accel_bridge.libraries.transformer_engine_torch.fast.grouped_fp8 import grouped_fp8
from accel_bridge.libraries.transformer_engine_torch.fast.linear import add_to
from accel_bridge.libraries.transformer_engine_torch.grouped import is_much


def _in_one_launch(
    x: torch.Tensor, weights: Sequence[torch.Tensor], splits: list[int], transposed: bool
) -> torch.Tensor | None:
    """All GEMMs at once, or None where that is impossible or no faster."""
    found = kernel(GROUPED_MATMUL)
    if found.is_reference or is_much(x.shape[0], weights[0], len(splits)):
        return None
    whole = None if isinstance(x, FakeTensor) else stacked(weights)
    if whole is None:
        return None
    given = (x, whole.transpose(1, 2) if transposed else whole, torch.tensor(splits, device="cpu"))
    return None if found.supports(*given) else found.function(*given)


def _products(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    splits: list[int],
    transposed: bool,
    biases: Sequence[torch.Tensor] = (),
) -> torch.Tensor:
    """``x[rows of group i] @ weights[i]^T + biases[i]`` (or ``@ weights[i]``): [t, m] or [t, k]."""
    together = _in_one_launch(x, weights, splits, transposed)
    if together is not None:
        for result, bias in zip(together.split(splits) if biases else (), biases, strict=True):
            result.add_(bias)
        return together
    output = x.new_empty(x.shape[0], weights[0].shape[0 if transposed else 1])
    parts, results = x.split(splits), output.split(splits)
    for index, (rows, result, weight) in enumerate(zip(parts, results, weights, strict=True)):
        factor = weight.t() if transposed else weight
        if biases:
            torch.addmm(biases[index], rows, factor, out=result)
        else:
            torch.mm(rows, factor, out=result)
    return output


class _GroupedLinear(torch.autograd.Function):
    """x [t, k], e weights of [m, k], e biases of [m] or none -> [t, m]."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, splits: list[int], fused: bool, first: bool, *parameters: Any
    ) -> Any:
        weights, biases = parameters[: len(splits)], parameters[len(splits) :]
        ctx.save_for_backward(x)
        ctx.splits, ctx.fused, ctx.first, ctx.weights = splits, fused, first, weights
        return _products(x.detach(), weights, splits, True, biases)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        (x,), weights = ctx.saved_tensors, ctx.weights
        count, needs = len(ctx.splits), ctx.needs_input_grad
        gradient = gradients[0].contiguous()
        of_x = _products(gradient, weights, ctx.splits, False) if needs[0] else None
        of_weights: list[Any] = [None] * count
        of_biases: list[Any] = [None] * (len(needs) - 4 - count)
        if needs[4]:
            of_weights = _weight_gradients(ctx, x, gradient)
            if of_biases:
                outputs = gradient.split(ctx.splits)
                of_biases = [one.sum(0, dtype=torch.float32).to(one.dtype) for one in outputs]
        return of_x, None, None, None, *of_weights, *of_biases


def _weight_gradients(
    ctx: Any, x: torch.Tensor, gradient: torch.Tensor
) -> list[torch.Tensor | None]:
    """What autograd gets for the weights [m, k]."""
    sums = [weight.main_grad for weight in ctx.weights] if ctx.fused else []
    if not sums or not _added_at_once(ctx, x, gradient, sums):
        pairs = zip(x.split(ctx.splits), gradient.split(ctx.splits), strict=True)
        if not sums:
            return [torch.mm(one.t(), rows) for rows, one in pairs]
        for (rows, one), main_grad in zip(pairs, sums, strict=True):
            if rows.numel():
                add_to(main_grad, rows, one, ctx.first)
            elif ctx.first:
                main_grad.zero_()
    return [placeholder(weight, one) for weight, one in zip(ctx.weights, sums, strict=True)]


def _added_at_once(
    ctx: Any, x: torch.Tensor, gradient: torch.Tensor, sums: Sequence[torch.Tensor]
) -> bool:
    """Add all weight gradients to their sums in one launch, if that is possible and faster."""
    found = kernel(GROUPED_WEIGHT_GRADIENT)
    if found.is_reference or is_much(x.shape[0], sums[0], len(sums)):
        return False
    if isinstance(x, FakeTensor) or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False  # the numbers of rows would be those of the capture
    whole = in_one_storage(sums)
    if whole is None or found.supports(x, gradient, ctx.splits, *whole) is not None:
        return False
    if ctx.first:
        torch._foreach_zero_(list(sums))
    found.function(x, gradient, ctx.splits, *whole)
    return True


def grouped_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``GroupedLinear.forward``.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """
    states = module.FP8GlobalStateManager

    @functools.wraps(original)
    def forward(
        self: Any,
        inp: Any,
        m_splits: Any,
        is_first_microbatch: bool | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        splits = _counts(m_splits)
        if states.is_fp8_enabled() and splits is not None and not (args or kwargs):
            result = grouped_fp8(self, states, inp, splits, is_first_microbatch)
            if result is not NotImplemented:
                return result
        parameters = None if args or kwargs or splits is None else _parameters(self, inp, states)
        if parameters is None or splits is None or len(splits) != self.num_gemms:
            return original(self, inp, m_splits, is_first_microbatch, *args, **kwargs)
        weights, biases = parameters
        x = inp.reshape(-1, inp.shape[-1])
        first = bool(is_first_microbatch) or getattr(weights[0], "overwrite_main_grad", False)
        added = biases if self.apply_bias else ()
        out = _GroupedLinear.apply(  # type: ignore[no-untyped-call]
            x, splits, self.fuse_wgrad_accumulation, first, *weights, *added
        )
        out = out.view(-1, *inp.shape[1:-1], out.shape[-1])
        return (out, list(biases)) if self.return_bias else out

    return forward


def _counts(m_splits: Any) -> list[int] | None:
    """Rows of each group, where they are on the host."""
    if isinstance(m_splits, list):
        return m_splits
    if isinstance(m_splits, FakeTensor) or not isinstance(m_splits, torch.Tensor):
        return None
    # A host tensor where devices are apart: `.device` is the redirected one, `.is_cuda` tells.
    return None if m_splits.is_cuda else [int(one) for one in m_splits.tolist()]


def _parameters(
    layer: Any, inp: Any, states: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Weights and biases; None where the layer needs Transformer Engine's own way."""
    if (
        not is_alone(layer)
        or getattr(layer, "single_grouped_weight", False)
        or getattr(layer, "single_grouped_bias", False)
        or getattr(layer, "use_grouped_tensor", False)
        or needs_fp8(layer, states)
        or interferes()
        or not inp.is_cuda
    ):
        return None
    weight_names, bias_names = _names(layer.num_gemms)
    weights = tuple(map(layer._parameters.get, weight_names))
    biases = tuple(map(layer._parameters.get, bias_names)) if layer.use_bias else ()
    if not is_plain(inp, *weights, *biases):
        return None
    first = weights[0]
    for weight in weights:
        if weight is None or "__fsdp_param__" in weight.__dict__:
            return None
        if weight.requires_grad is not first.requires_grad:
            return None
    return weights, biases


@functools.cache
def _names(count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a layer's weights and biases."""
    numbers = range(count)
    return tuple(f"weight{i}" for i in numbers), tuple(f"bias{i}" for i in numbers)
