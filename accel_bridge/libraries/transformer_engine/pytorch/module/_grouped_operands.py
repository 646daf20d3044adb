"""The FP8 operands of several experts' products: rows of all, quantized at once.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from accel_bridge.kernels import (
    FLOAT8_BLOCK_QUANTIZE,
    GROUPED_FLOAT8_BLOCK_TRANSPOSE,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_SCALED_MATMUL,
    SCALED_MATMUL,
)
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.transformer_engine_torch._tensors import stacked

from ..constants import TE_DType_To_Torch
from ..quantized_tensor import QuantizedTensor
from ..tensor.float8_blockwise_tensor import Float8BlockQuantizer, Float8BlockwiseQTensor
from ..tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
)

#: What the rows of an expert, and the sizes of its product, are multiples of with block scaling.
_ROWS, _SIZE, _BLOCK = 8, 16, 128
_KINDS = (Float8Quantizer, Float8CurrentScalingQuantizer, Float8BlockQuantizer)


class Operand(NamedTuple):
    """FP8 numbers of all experts, with a factor for each expert or for each block.

    :param numbers: [t, k]; of weights [e, m, k].
    :param scale_inv: [e], or as the contracts of grouped products want blocks' scale_inv.
    :param transposed: the transposes, expert after expert; of weights [e, k, m]. None where none
        is needed.
    :param turned_factors: those of ``transposed``.
    """

    numbers: torch.Tensor
    scale_inv: torch.Tensor
    transposed: torch.Tensor | None
    turned_factors: torch.Tensor | None


class State(NamedTuple):
    """Delayed scaling's scales and newest largest magnitudes of all experts, [e] each."""

    scale: torch.Tensor
    amax: torch.Tensor


def state_of(module: Any, direction: str, place: int, step: int) -> State | None:
    """The part of the module's state at ``place``, ``place + step``, ...; None without one."""
    state = module.fp8_meta[direction]
    if not hasattr(state, "amax_history"):
        return None
    return State(state.scale[place::step], state.amax_history[0, place::step])


def why_apart(
    quantizers: Sequence[Any], splits: Sequence[int], weights: Sequence[Any]
) -> str | None:
    """Why these quantizers' tensors cannot be made and multiplied together, or None.

    :param quantizers: of the inputs, the weights and the gradients, in any order.
    :param weights: [m, k] each, plain or FP8.
    """
    sizes = weights[0].shape
    if isinstance(weights[0], QuantizedTensor):
        kinds = {type(weight) for weight in weights}
        if len(kinds) > 1 or not kinds <= {Float8Tensor, Float8BlockwiseQTensor}:
            return "weights of several kinds, or of none that is known"
    # A reference would be slower than a device's products one by one.
    if kernel(GROUPED_SCALED_MATMUL).is_reference != kernel(SCALED_MATMUL).is_reference:
        return "the device has no grouped product"
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a graph is captured, whose numbers of rows would stay"
    kind = type(quantizers[0])
    if kind not in _KINDS or any(type(one) is not kind for one in quantizers):
        return f"quantizers of type {kind.__name__}"
    if kind is Float8CurrentScalingQuantizer and any(
        one.use_existing_amax or one.with_amax_reduction for one in quantizers
    ):
        return "largest magnitudes from elsewhere"
    if any(size % _SIZE for size in sizes):
        return f"sizes that are no multiples of {_SIZE}"
    if kind is Float8BlockQuantizer and any(rows % _ROWS for rows in splits):
        return "numbers of rows that the library refuses"
    return None


def quantize_rows(
    quantizer: Any, rows: torch.Tensor, splits: Sequence[int], state: State | None, turns: bool
) -> Operand:
    """Rows [t, k] of all experts.

    :param quantizer: of any expert; all have the same options.
    :param turns: a product needs the transposes.
    """
    dtype = TE_DType_To_Torch[quantizer.dtype]
    rows = rows.contiguous()
    if isinstance(quantizer, Float8BlockQuantizer):
        options: dict[str, Any] = {
            "dtype": dtype,
            "power_of_2": quantizer.force_pow_2_scales,
            "epsilon": quantizer.amax_epsilon,
        }
        numbers, scale_inv = kernel(FLOAT8_BLOCK_QUANTIZE)(rows, rows=1, **options)
        transposed = turned_factors = None
        if turns:
            transposed, turned_factors = kernel(GROUPED_FLOAT8_BLOCK_TRANSPOSE)(
                rows, splits, **options
            )
        return Operand(numbers, scale_inv, transposed, turned_factors)
    transposed = torch.empty(rows.numel(), dtype=dtype, device=rows.device) if turns else None
    if state is None:
        scaling: dict[str, Any] = {
            "power_of_2": bool(quantizer.force_pow_2_scales),
            "epsilon": float(quantizer.amax_epsilon),
        }
    else:
        scaling = {"scale": state.scale, "amax": state.amax}
    numbers, scale_inv = kernel(GROUPED_FLOAT8_QUANTIZE)(
        rows, splits, dtype=dtype, transposed=transposed, **scaling
    )
    return Operand(numbers, scale_inv, transposed, scale_inv if turns else None)


def _joined(weights: Sequence[Any], turns: bool) -> Operand:
    """Weights [m, k] that are FP8 themselves, with their scales."""
    parts = [weight._operand(by_columns=False) for weight in weights]
    dtype = parts[0][0].dtype
    every = [numbers.view(torch.uint8) for numbers, _ in parts]
    numbers = stacked(every)
    if numbers is None:
        numbers = torch.stack(every)
    by_block = isinstance(weights[0], Float8BlockwiseQTensor)
    scale_inv = (torch.stack if by_block else torch.cat)([one for _, one in parts])
    transposed = turned_factors = None
    if turns:
        transposed = numbers.transpose(1, 2).contiguous().view(dtype)
        turned_factors = scale_inv.transpose(1, 2).contiguous() if by_block else scale_inv
    return Operand(numbers.view(dtype), scale_inv, transposed, turned_factors)


def quantize_weights(
    quantizer: Any, weights: Sequence[torch.Tensor], state: State | None, turns: bool
) -> Operand:
    """Weights [m, k] of all experts; those that are FP8 themselves are only joined."""
    if isinstance(weights[0], QuantizedTensor):
        return _joined(weights, turns)
    experts, (m, k) = len(weights), weights[0].shape
    whole = stacked(weights)
    if whole is None:
        whole = torch.stack([weight.detach() for weight in weights])
    if not isinstance(quantizer, Float8BlockQuantizer):
        rows = quantize_rows(quantizer, whole.reshape(-1, k), [m] * experts, state, turns)
        transposed = None if rows.transposed is None else rows.transposed.view(experts, k, m)
        return Operand(
            rows.numbers.view(experts, m, k), rows.scale_inv, transposed, rows.turned_factors
        )
    options: dict[str, Any] = {
        "dtype": TE_DType_To_Torch[quantizer.dtype],
        "rows": _BLOCK,
        "power_of_2": quantizer.force_pow_2_scales,
        "epsilon": quantizer.amax_epsilon,
    }
    quantize = kernel(FLOAT8_BLOCK_QUANTIZE)
    if m % _BLOCK:
        made = [quantize(one, **options) for one in whole]
        numbers = torch.stack([one.view(torch.uint8) for one, _ in made])
        scale_inv = torch.stack([one for _, one in made])
    else:
        flat, scale_inv = quantize(whole.reshape(-1, k), **options)
        numbers, scale_inv = flat.view(torch.uint8), scale_inv.view(experts, m // _BLOCK, -1)
    numbers = numbers.view(experts, m, k)
    transposed = turned_factors = None
    if turns:
        transposed = numbers.transpose(1, 2).contiguous().view(options["dtype"])
        turned_factors = scale_inv.transpose(1, 2).contiguous()
    return Operand(numbers.view(options["dtype"]), scale_inv, transposed, turned_factors)
