"""Norms: torch's kernels if the launch dominates, Triton's if memory traffic does."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch.nn import functional

from accel_bridge.backends.cuda import fused
from accel_bridge.backends.cuda.kernels._choice import LARGE, Choice
from accel_bridge.kernels import LAYER_NORM, RMS_NORM, gamma

#: Widest row of the Triton kernels (they hold a row in registers).
WIDEST: Final = 16384


@lru_cache(maxsize=256)
def choose(elements: int, hidden: int, dtype: torch.dtype, shifted: bool = False) -> Choice:
    """The implementation for an input of ``elements`` in rows of ``hidden``.

    :param shifted: the factor is ``1 + weight``.
    """
    reason = fused.missing()
    if reason is not None:
        return Choice("torch", reason)
    if dtype == torch.float64:
        return Choice("torch", "the Triton kernels compute in float32")
    if hidden > WIDEST:
        return Choice("torch", f"rows above {WIDEST} do not fit into one program")
    if shifted and dtype != torch.float32:
        return Choice("triton", "1 + weight is not rounded before the product")
    if elements < LARGE:
        return Choice("torch", "small: launch time dominates, and torch's is shorter")
    return Choice("triton", "one pass forward and one backward, sums in float32")


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``layer_norm``."""
    chosen = choose(input.numel(), input.shape[-1], input.dtype, zero_centered_gamma)
    if chosen.name == "triton":
        from accel_bridge.backends.cuda.fused import norms

        return norms.layer_norm(
            input, weight, bias, eps=eps, zero_centered_gamma=zero_centered_gamma
        )
    factor = gamma(weight, zero_centered_gamma, input.dtype)
    shift = None if bias is None else bias.to(input.dtype)
    return functional.layer_norm(input, factor.shape, factor, shift, eps)


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``rms_norm``."""
    chosen = choose(input.numel(), input.shape[-1], input.dtype, zero_centered_gamma)
    if chosen.name == "triton":
        from accel_bridge.backends.cuda.fused import norms

        return norms.rms_norm(input, weight, eps=eps, zero_centered_gamma=zero_centered_gamma)
    factor = gamma(weight, zero_centered_gamma, input.dtype)
    return functional.rms_norm(input, factor.shape, factor, eps)


def examples() -> list[tuple[str, str, str]]:
    """Usual calls with what serves them: (call, implementation, why)."""
    found = []
    for tokens, hidden in ((2048, 768), (16384, 768), (4096, 4096)):
        choice = choose(tokens * hidden, hidden, torch.bfloat16)
        found.append((f"{tokens} rows of {hidden}", choice.name, choice.why))
    return found


_WHY: Final = "torch's kernel for small inputs, Triton's for large ones"
KERNELS: Final = (
    LAYER_NORM.kernel(layer_norm, _WHY, source="torch and accel_bridge", choices=examples),
    RMS_NORM.kernel(rms_norm, _WHY, source="torch and accel_bridge", choices=examples),
)
