"""Rows of tensors, FP8 tensors among them."""

from __future__ import annotations

from typing import Any

import torch


def is_fp8(tensor: torch.Tensor) -> bool:
    """Whether it is one of the FP8 classes."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    from .quantized_tensor import QuantizedTensor

    return isinstance(tensor, QuantizedTensor)


def select_rows(
    tensor: torch.Tensor, rows: torch.Tensor, blank: torch.Tensor | None = None
) -> torch.Tensor:
    """Rows of a tensor [n, h] of any kind; of FP8 tensors the bytes and the scales of rows.

    :param rows: [m], int64.
    :param blank: [m], bool: rows that become zeros.
    :raises ValueError: an FP8 tensor whose scales do not belong to rows.
    """
    selected: torch.Tensor = (_select_fp8 if is_fp8(tensor) else _select)(tensor, rows, blank)
    return selected


def _select(tensor: Any, rows: torch.Tensor, blank: torch.Tensor | None) -> Any:
    selected = tensor.index_select(0, rows)
    return selected if blank is None else selected.masked_fill_(blank.unsqueeze(-1), 0)


def _select_fp8(tensor: Any, rows: torch.Tensor, blank: torch.Tensor | None) -> Any:
    from .tensor.float8_blockwise_tensor import Float8BlockwiseQTensor
    from .tensor.float8_tensor import Float8Tensor

    if isinstance(tensor, Float8Tensor):
        data = _select(tensor._data, rows, blank)
        return Float8Tensor(
            data=data,
            fp8_dtype=tensor._fp8_dtype,
            fp8_scale_inv=tensor._scale_inv,
            shape=data.shape,
            dtype=tensor.dtype,
        )
    if isinstance(tensor, Float8BlockwiseQTensor):
        data = _select(tensor._rowwise_data, rows, blank)
        # [blocks, rows], or more rows where they were padded.
        scale_inv: Any = tensor._rowwise_scale_inv
        scales = _select(scale_inv.t(), rows, blank)
        return Float8BlockwiseQTensor(
            shape=data.shape,
            dtype=tensor.dtype,
            rowwise_data=data,
            rowwise_scale_inv=scales.t().contiguous(),
            columnwise_data=None,
            columnwise_scale_inv=None,
            fp8_dtype=tensor._fp8_dtype,
            quantizer=None,
            is_2D_scaled=False,
        )
    raise ValueError(f"rows of {type(tensor).__name__} cannot be moved: Unsupported FP8 recipe")
