"""Weights of linear operations: their place among ranks, their values, their quantizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch

from ...distributed import CudaRNGStatesTracker
from ...quantization import FP8GlobalStateManager
from ...quantized_tensor import Quantizer
from .._common import is_quantized_tensor

Group = torch.distributed.ProcessGroup
RNGTracker = Callable[[], CudaRNGStatesTracker]


@dataclass(frozen=True, slots=True)
class TensorParallelism:
    """How a weight is divided among ranks.

    :param mode: ``column`` (outputs), ``row`` (inputs), or None.
    :param sequence_parallel: the tensor that is whole on each rank otherwise is divided by rows.
    """

    mode: str | None
    group: Group | None
    size: int
    sequence_parallel: bool
    local_in_features: int
    local_out_features: int

    @staticmethod
    def of(
        mode: str | None,
        group: Group | None,
        sequence_parallel: bool,
        in_features: int,
        out_features: int,
    ) -> TensorParallelism:
        """:raises ValueError: another mode, or features that the ranks cannot divide."""
        size = 1 if mode is None else torch.distributed.get_world_size(group)
        if size == 1:
            return TensorParallelism(None, None, 1, False, in_features, out_features)
        if mode not in ("column", "row"):
            raise ValueError(
                f'Supported modes for tensor parallelism are `None`, "row", and "column" ({mode=})'
            )
        divided = out_features if mode == "column" else in_features
        if divided % size:
            raise ValueError(
                "Invalid configuration for tensor parallelism "
                f"({mode=}, {in_features=}, {out_features=}, group_size={size})"
            )
        if mode == "column":
            out_features //= size
        else:
            in_features //= size
        return TensorParallelism(mode, group, size, sequence_parallel, in_features, out_features)


def random_values(weight: torch.Tensor, tracker: RNGTracker | None) -> torch.Tensor:
    """``weight`` with ``torch.nn.Linear``'s initial values, drawn from the tracker's generator."""
    with nullcontext() if tracker is None else cast(Any, tracker()).fork():
        torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight


def quantized_weight(weight: torch.Tensor, quantizer: Quantizer | None) -> Any:
    """The quantized parameter's data.

    :raises RuntimeError: there is no quantizer: parameters on ``meta`` that were made within
        ``quantized_model_init`` get their values within ``autocast``.
    """
    if quantizer is None:
        raise RuntimeError(
            "Tried to quantize weight with deferred initialization due to meta device, but no "
            "quantizer was available. This is most likely because the weight was initialized "
            "within quantized_model_init, but the forward pass was not performed within autocast."
        )
    quantizer.set_usage(rowwise=True, columnwise=torch.is_grad_enabled())
    quantizer.internal = False
    with torch.no_grad():
        return quantizer(weight)


def configure_weight_quantizer(quantizer: Quantizer, weight: Any, quantized: bool) -> None:
    """Prepare a weight's quantizer after the recipe's state was made or updated.

    :param weight: the parameter; None while its operation is being made.
    :param quantized: the parameter is quantized, or is going to be.
    """
    if is_quantized_tensor(weight):
        quantizer.set_usage(rowwise=True, columnwise=torch.is_grad_enabled())
        quantizer.internal = False
        cast(Any, weight).update_quantizer(quantizer.copy())
    else:
        # Nobody outside sees tensors that are only made for a product.
        quantizer.internal = not (FP8GlobalStateManager.with_fp8_parameters() or quantized)


def apply_scaling_options(recipe: Any, input: Any, weight: Any, grad: Any) -> None:
    """What the recipe of current scaling says about each tensor."""
    if recipe is None or not recipe.float8_current_scaling():
        return
    options = (recipe.fp8_quant_fwd_inp, recipe.fp8_quant_fwd_weight, recipe.fp8_quant_bwd_grad)
    for quantizer, option in zip((input, weight, grad), options, strict=True):
        quantizer.force_pow_2_scales = option.power_2_scale
        quantizer.amax_epsilon_scales = option.amax_epsilon
