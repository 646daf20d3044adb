"""A quantized tensor as a matrix that a product reads along what it sums over."""

from __future__ import annotations

from typing import Any

import torch

from ..constants import TE_DType_To_Torch


def operand(storage: Any, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers [rows, k], factors) of a quantized tensor [..., columns].

    :param by_columns: the product sums over the rows; the transposed copy is read.
    :raises TypeError: a tensor that is not quantized, or in no known way.
    :raises RuntimeError: the copy that is needed was dropped.
    """
    from ..tensor.storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage
    from ..tensor.storage.float8_tensor_storage import Float8TensorStorage

    if isinstance(storage, Float8TensorStorage):
        return _whole(storage, by_columns)
    if isinstance(storage, Float8BlockwiseQTensorStorage):
        return _blocks(storage, by_columns)
    raise TypeError(f"a quantized product cannot take a {type(storage).__name__}")


def _whole(storage: Any, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = TE_DType_To_Torch[storage._fp8_dtype]
    data, transpose = storage._data, storage._transpose
    if transpose is not None and storage._transpose_invalid:
        transpose = None
    if by_columns:
        if transpose is not None:
            numbers = transpose.reshape(transpose.shape[0], -1)
        elif data is not None:
            numbers = data.reshape(-1, data.shape[-1]).t().contiguous()
    elif data is not None:
        numbers = data.reshape(-1, data.shape[-1])
    elif transpose is not None:
        numbers = transpose.reshape(transpose.shape[0], -1).t().contiguous()
    if data is None and transpose is None:
        raise RuntimeError("this FP8 tensor has neither its data nor their transpose")
    return numbers.view(dtype), storage._scale_inv


def _blocks(storage: Any, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    data = storage._columnwise_data if by_columns else storage._rowwise_data
    factors = storage._columnwise_scale_inv if by_columns else storage._rowwise_scale_inv
    if data is None and by_columns and storage._is_2D_scaled:
        storage._create_columnwise()
        data, factors = storage._columnwise_data, storage._columnwise_scale_inv
    if data is None or factors is None:
        which = "columns" if by_columns else "rows"
        raise RuntimeError(f"this FP8 tensor has no copy with blocks along its {which}")
    width = data.shape[0] if by_columns else data.shape[-1]
    numbers = data.reshape(width, -1) if by_columns else data.reshape(-1, width)
    rows, k = numbers.shape
    numbers = numbers.view(TE_DType_To_Torch[storage._fp8_dtype])
    # Factors are kept as the library's products read them: padded to multiples of four, and those
    # of 1 x 128 blocks transposed.
    if storage._is_2D_scaled:
        return numbers, factors[:, : -(-k // 128)]
    return numbers, factors[:, :rows].t()
