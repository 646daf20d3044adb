"""What several modules need: parameters' initialisation, delayed weight gradients, joined weights.

Source of the names: transformer_engine/pytorch/module/_common.py of Transformer Engine 2.13.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_bridge.kernels import LAYER_NORM, RMS_NORM
from accel_bridge.kernels.active import kernel

from ..utils import get_default_init_method

#: Computes a delayed gradient from the tensors that were stored with it.
Job = Callable[..., Any]


@dataclass
class _ParameterInitMeta:
    """How a parameter gets its first values.

    :param init_fn: called with the parameter; TE's default is a normal distribution.
    :param get_rng_state_tracker: returns the tracker whose generator is used, or None.
    :param fp8_meta_index: index of the quantizer of an FP8 parameter.
    """

    init_fn: Callable[[torch.Tensor], Any] | None = None
    get_rng_state_tracker: Callable[[], Any] | None = None
    fp8_meta_index: int | None = None

    def __post_init__(self) -> None:
        if self.init_fn is None:
            self.init_fn = get_default_init_method()


class WeightGradStore:
    """Weight gradients that are computed later, first in, first out.

    :param delay_wgrad_compute: store them; else they are computed in the backward pass.
    """

    def __init__(self, delay_wgrad_compute: bool = False, ub_bulk_wgrad: bool = False) -> None:
        assert not (delay_wgrad_compute and ub_bulk_wgrad), (
            "ub_bulk_wgrad is not supported when enabling delay_wgrad_compute"
        )
        self.context: deque[tuple[Sequence[Any], Job]] = deque()
        self.enabled = delay_wgrad_compute

    def delay_wgrad_compute(self) -> bool:
        """Whether gradients are stored."""
        return self.enabled

    def enable_delay_wgrad_compute(self) -> None:
        """Store the gradients from now on."""
        self.enabled = True

    def disable_delay_wgrad_compute(self) -> None:
        """Compute the gradients at once from now on."""
        self.enabled = False

    def put(self, tensor_list: Sequence[Any], func: Job) -> None:
        """Keep ``func(*tensor_list)`` for later."""
        assert self.enabled, "delay_wgrad_compute is not enabled"
        self.context.append((tensor_list, func))

    def pop(self) -> tuple[Any, Sequence[Any]]:
        """Run the oldest: (its result, the tensors that it got).

        :raises RuntimeError: nothing is stored.
        """
        assert self.enabled, "delay_wgrad_compute is not enabled"
        if not self.context:
            raise RuntimeError("Pop empty queue: no backward pass has stored a weight gradient")
        tensor_list, func = self.context.popleft()
        return func(*tensor_list), tensor_list

    def assert_empty(self) -> None:
        """:raises AssertionError: a gradient is stored."""
        assert self.enabled, "delay_wgrad_compute is not enabled"
        assert not self.context, f"{len(self.context)} weight gradients were never computed"


def apply_normalization(
    inputmat: torch.Tensor,
    ln_weight: torch.Tensor,
    ln_bias: torch.Tensor | None,
    eps: float,
    normalization: str,
    zero_centered_gamma: bool,
) -> torch.Tensor:
    """LayerNorm or RMSNorm of inputmat [..., h] over h, in the weight's dtype.

    Only called by modules, whose input has the weight's dtype or float32: a float32 residual
    stream is normalised exactly and rounded once.
    """
    if inputmat.dtype != ln_weight.dtype and inputmat.dtype == torch.float32:
        bias = None if ln_bias is None else ln_bias.float()
        exact = apply_normalization(
            inputmat, ln_weight.float(), bias, eps, normalization, zero_centered_gamma
        )
        return exact.to(ln_weight.dtype)
    if normalization == "RMSNorm":
        return kernel(RMS_NORM)(
            inputmat, ln_weight, eps=eps, zero_centered_gamma=zero_centered_gamma
        )
    return kernel(LAYER_NORM)(
        inputmat, ln_weight, ln_bias, eps=eps, zero_centered_gamma=zero_centered_gamma
    )


class _NoopCatFunc(torch.autograd.Function):
    """Tensors joined along a dimension: a view where they lie side by side, else a copy."""

    @staticmethod
    def forward(ctx: Any, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        first = tensors[0]
        if not -first.dim() <= dim < first.dim():
            raise ValueError(
                f"Attempted to concatenate tensor with shape {list(first.shape)} along dim {dim}"
            )
        ctx.dim = dim % first.dim()
        ctx.sizes = [tensor.shape[ctx.dim] for tensor in tensors]
        for tensor in tensors:
            shape = list(tensor.shape)
            if tensor.dim() == first.dim():
                shape[ctx.dim] = first.shape[ctx.dim]
            if shape != list(first.shape):
                shapes = [list(tensor.shape) for tensor in tensors]
                raise ValueError(
                    f"Attempted to concatenate tensors with shapes {shapes} along dim {dim}"
                )
        offset = first.storage_offset()
        storage = first.untyped_storage().data_ptr()
        for tensor, size in zip(tensors, ctx.sizes, strict=True):
            apart = (
                tensor.storage_offset() != offset
                or tensor.untyped_storage().data_ptr() != storage
                or tensor.dtype != first.dtype
                or tensor.stride() != first.stride()
            )
            if apart:
                return torch.cat(tensors, dim=ctx.dim)
            offset += size * first.stride(ctx.dim)
        whole = list(first.shape)
        whole[ctx.dim] = sum(ctx.sizes)
        return first.as_strided(whole, first.stride())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return None, *gradients[0].split(ctx.sizes, dim=ctx.dim)


def noop_cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """The tensors joined along ``dim``; nothing is copied if they lie side by side.

    :raises ValueError: no tensors, or shapes that do not fit.
    """
    if not tensors:
        raise ValueError("Attempted to concatenate 0 tensors")
    if len(tensors) == 1:
        return tensors[0]
    joined: torch.Tensor = _NoopCatFunc.apply(dim, *tensors)  # type: ignore[no-untyped-call]
    return joined
