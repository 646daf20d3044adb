"""Products of several groups of rows, each with a weight of its own.

Legend: t tokens sorted by group, g groups, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cpp_extensions import general_grouped_gemm
from ._common import is_quantized_tensor, maybe_dequantize


@dataclass(frozen=True, slots=True)
class GroupedPass:
    """How a grouped operation computes.

    :param counts: rows of each group.
    :param quantizers: for each group's input, weight and output gradient; None without FP8.
    """

    dtype: torch.dtype
    counts: list[int]
    quantizers: list[tuple[Any, Any, Any]] | None
    input_requires_grad: bool
    weight_requires_grad: bool


def _quantized(parts: Sequence[Any], quantizers: Sequence[Any], **usage: bool) -> list[Any]:
    """Each part by its quantizer; those that are quantized already as they are."""
    made = []
    for part, quantizer in zip(parts, quantizers, strict=True):
        if not is_quantized_tensor(part):
            quantizer.set_usage(**usage)
            part = quantizer(part)
        made.append(part)
    return made


def _gemm(
    call: GroupedPass, a: Sequence[Any], b: Sequence[Any], out: list[Any], **options: Any
) -> None:
    none = [None] * len(call.counts)
    general_grouped_gemm(list(a), list(b), out, none, call.dtype, m_splits=call.counts, **options)


def grouped_forward(
    call: GroupedPass, input: Any, weights: Sequence[Any], biases: list[torch.Tensor] | None
) -> tuple[torch.Tensor, list[Any], list[Any]]:
    """Outputs [t, m], and inputs and weights as the backward pass needs them.

    :param input: [t, k]. :param weights: g of [m, k]. :param biases: g of [m].
    """
    x = maybe_dequantize(input, call.dtype)
    xs: Sequence[Any] = x.split(call.counts)
    if call.quantizers is None:
        used = [maybe_dequantize(weight, call.dtype) for weight in weights]
    else:
        of_inputs, of_weights, _ = zip(*call.quantizers, strict=True)
        xs = _quantized(xs, of_inputs, rowwise=True, columnwise=call.weight_requires_grad)
        used = _quantized(weights, of_weights, rowwise=True, columnwise=call.input_requires_grad)
    output = x.new_empty(*x.shape[:-1], weights[0].size()[0])
    _gemm(call, used, xs, [output], bias=biases, use_bias=biases is not None, single_output=True)
    if call.quantizers is not None:
        # The backward pass reads both by columns.
        made = [one for one, weight in zip(used, weights, strict=True) if one is not weight]
        for one in [*xs, *(made if call.input_requires_grad else [])]:
            one.update_usage(rowwise_usage=False, columnwise_usage=True)
    kept = list(xs) if call.weight_requires_grad else []
    return output, kept, used if call.input_requires_grad else []


def grouped_backward(
    call: GroupedPass,
    grad_output: Any,
    inputs: Sequence[Any],
    weights: Sequence[Any],
    main_grads: Sequence[tuple[torch.Tensor, bool]] | None,
) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
    """Gradients of the input and of each weight; those in ``main_grads`` are in place.

    :param inputs: what :func:`grouped_forward` returned for this, as ``weights``.
    :param main_grads: where each weight's gradient goes, and whether to overwrite it.
    """
    dy = maybe_dequantize(grad_output, call.dtype)
    dys: Sequence[Any] = dy.split(call.counts)
    if call.quantizers is not None:
        dys = _quantized(
            dys,
            [quantizers[2] for quantizers in call.quantizers],
            rowwise=call.input_requires_grad,
            columnwise=call.weight_requires_grad,
        )
    dx = None
    if call.input_requires_grad:
        dx = dy.new_empty(*dy.shape[:-1], weights[0].size()[1])
        _gemm(call, weights, dys, [dx], layout="NN", single_output=True, use_split_accumulator=True)
    if not call.weight_requires_grad:
        return dx, [None] * len(call.counts)
    if main_grads is None:
        shape = (dy.shape[-1], inputs[0].size()[-1])
        grads = list(dy.new_empty(len(call.counts), *shape))
    else:
        grads = [main_grad for main_grad, _ in main_grads]
    _gemm(
        call,
        inputs,
        dys,
        grads,
        layout="NT",
        accumulate=main_grads is not None and not main_grads[0][1],
        use_split_accumulator=True,
    )
    return dx, list(grads)
