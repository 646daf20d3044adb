"""FP8 numbers with one scale for the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...constants import TE_DType, TE_DType_To_Torch
from ...cpp_extensions._enums import DType
from ...cpp_extensions._quantize import dequantize, fp8_transpose
from ...quantized_tensor import QuantizedTensorStorage
from ...utils import _empty_tensor, is_non_tn_fp8_gemm_supported

if TYPE_CHECKING:
    from typing import Self

Maybe = torch.Tensor | None


class _FromFloat8Func(torch.autograd.Function):
    """Dequantize; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, dtype: torch.dtype) -> torch.Tensor:
        if tensor._data is None:
            raise NotImplementedError("Casting back from the transpose not implemented yet!")
        return dequantize(tensor, TE_DType[dtype])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class Float8TensorStorage(QuantizedTensorStorage):
    """FP8 numbers, and their transposed copy while products need it.

    :param data: [..., columns], uint8, or None.
    :param fp8_scale_inv: [1], float32: what numbers are multiplied with to dequantize them.
    :param fp8_dtype: the format.
    :param data_transpose: [columns, ...], uint8, or None.
    :param quantizer: what quantizes into this storage; it is copied.
    """

    _data: Maybe
    _quantizer: Any
    _fp8_dtype: DType
    _scale_inv: Any
    _transpose: Maybe
    _transpose_invalid: bool

    def __new__(
        cls,
        *args: Any,
        data: Maybe,
        fp8_scale_inv: torch.Tensor,
        fp8_dtype: DType,
        data_transpose: Maybe = None,
        quantizer: Any = None,
        **kwargs: Any,
    ) -> Self:
        """A storage, or the tensor that a subclass is."""
        if cls is Float8TensorStorage:
            instance = object.__new__(cls)
        else:
            numbers = data if data is not None else data_transpose
            if numbers is not None:
                kwargs.setdefault("device", numbers.device)
            instance = super().__new__(cls, *args, **kwargs)
        instance._data = data
        instance._quantizer = None if quantizer is None else quantizer.copy()
        instance._fp8_dtype = fp8_dtype
        instance._scale_inv = fp8_scale_inv
        instance._transpose = data_transpose
        instance._transpose_invalid = data_transpose is None
        return instance

    def clear(self) -> None:
        """Release the memory; the scale, which others may share, stays."""
        for part in (self._data, self._transpose):
            if part is not None:
                part.data = _empty_tensor()
        self._transpose_invalid = True

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copy numbers and scale.

        :raises TypeError: another kind of storage.
        :raises RuntimeError: another format.
        """
        if not isinstance(src, Float8TensorStorage):
            raise TypeError("copy_from_storage expects Float8TensorStorage")
        if self._fp8_dtype != src._fp8_dtype:
            raise RuntimeError("FP8 dtype mismatch in copy_from_storage")
        for mine, other in (
            (self._data, src._data),
            (self._transpose, src._transpose),
            (self._scale_inv, src._scale_inv),
        ):
            if mine is not None and other is not None:
                mine.copy_(other)

    def get_metadata(self) -> dict[str, Any]:
        """Keyword arguments of the constructor."""
        return {
            "data": self._data,
            "fp8_scale_inv": self._scale_inv,
            "fp8_dtype": self._fp8_dtype,
            "data_transpose": self._transpose,
            "quantizer": self._quantizer,
        }

    def prepare_for_saving(self) -> tuple[list[Maybe], Self]:
        """Take numbers, transpose and scale out."""
        parts = [self._data, self._transpose, self._scale_inv]
        self._data = self._transpose = self._scale_inv = None
        return parts, self

    def restore_from_saved(self, tensors: Sequence[Maybe]) -> Sequence[Maybe]:
        """Put them back."""
        self._data, self._transpose, self._scale_inv = tensors[:3]
        return tensors[3:]

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:
        """Numbers and transpose, or one of them.

        :raises ValueError: neither is asked for.
        """
        if rowwise_data and columnwise_data:
            return self._data, self._transpose
        if rowwise_data:
            return self._data
        if columnwise_data:
            return self._transpose
        raise ValueError("No data to get, both rowwise_data and columnwise_data are False")

    def dequantize(self, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The numbers in ``dtype``."""
        return _FromFloat8Func.forward(None, self, dtype)

    def size(self, *args: Any, **kwargs: Any) -> Any:
        """Sizes of the numbers; of two dimensions where only the transpose is there."""
        if self._data is not None:
            return self._data.size(*args, **kwargs)
        assert self._transpose is not None
        size = self._transpose.size()
        return torch.Size([math.prod(size[1:]), size[0]])

    def _matching_transpose(self, shape: Sequence[int]) -> Maybe:
        """The transpose of a view, or None if it is not one of the transpose."""
        if self._transpose is None or self._transpose_invalid:
            return None
        if self._transpose.shape[0] != shape[-1]:
            return None
        return self._transpose.view(shape[-1], *shape[:-1])

    def view(self, shape: torch.Size) -> Any:
        """A storage of the same numbers."""
        assert self._data is not None
        data = self._data.view(shape)
        return Float8TensorStorage(
            data=data,
            fp8_scale_inv=self._scale_inv,
            fp8_dtype=self._fp8_dtype,
            data_transpose=self._matching_transpose(data.shape),
            quantizer=self._quantizer,
        )

    def _operand(self, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(numbers [rows, k], scale): a matrix that a product reads along what it sums over.

        :param by_columns: the product sums over the rows; the transpose is read.
        :raises RuntimeError: there is neither of the copies.
        """
        dtype = TE_DType_To_Torch[self._fp8_dtype]
        data, transpose = self._data, self._transpose
        if transpose is not None and self._transpose_invalid:
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
        return numbers.view(dtype), self._scale_inv

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(fp8_dtype={self._fp8_dtype}, "
            f"scale_inv={self._scale_inv.item()}, data={self.dequantize()})"
        )

    def _create_transpose(self) -> None:
        assert self._data is not None
        self._transpose = fp8_transpose(
            self._data.contiguous(), self._fp8_dtype, out=self._transpose
        )
        self._transpose_invalid = False

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Make or drop the numbers and their transpose.

        :raises RuntimeError: the numbers, which were dropped, are needed again.
        """
        wanted = self.get_usages()
        has_data = self._data is not None
        has_transpose = self._transpose is not None and not self._transpose_invalid
        if is_non_tn_fp8_gemm_supported():
            needs_data = has_data or bool(rowwise_usage) or bool(columnwise_usage)
            needs_transpose = False
        else:
            needs_data = wanted["rowwise"] if rowwise_usage is None else rowwise_usage
            needs_transpose = wanted["columnwise"] if columnwise_usage is None else columnwise_usage
        if needs_data and not has_data:
            raise RuntimeError("Cannot generate FP8 data, even from FP8 data transpose")
        if needs_transpose and not has_transpose:
            if not has_data:
                raise RuntimeError("FP8 data is required to generate FP8 data transpose")
            self._create_transpose()
        if not needs_data:
            self._data = None
        if not needs_transpose:
            self._transpose = None
            self._transpose_invalid = True

    def get_usages(self) -> dict[str, bool]:
        """Which products can read it."""
        rowwise = self._data is not None
        if is_non_tn_fp8_gemm_supported():
            return {"rowwise": rowwise, "columnwise": rowwise}
        columnwise = self._transpose is not None and not self._transpose_invalid
        return {"rowwise": rowwise, "columnwise": columnwise}
