"""``RMSNorm``.

Source of the interface: transformer_engine/pytorch/module/rmsnorm.py of Transformer Engine 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ._norm import Norm

__all__ = ["RMSNorm"]


class RMSNorm(Norm):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimensions.

    :param normalized_shape: sizes of the dimensions that are normalised over.
    :param zero_centered_gamma: the factor is one plus the weight.
    :param sm_margin: read by callers; the kernels here have none.
    :param sequence_parallel: set as an attribute of the weight.
    """

    normalization = "RMSNorm"

    def __init__(
        self,
        normalized_shape: Iterable[int] | int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            normalized_shape,
            eps,
            sequence_parallel,
            params_dtype,
            zero_centered_gamma,
            hidden_size,
            **kwargs,
        )

    def reset_rms_norm_parameters(self) -> None:
        """Deprecated name of :meth:`reset_parameters`."""
        self._reset_by_old_name("reset_rms_norm_parameters")
