"""FP8 numbers with a scale for each block of 1 x 128 or 128 x 128."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...constants import TE_DType_To_Torch
from ...cpp_extensions._enums import DType
from ...cpp_extensions._quantize import fp8_transpose
from ...quantized_tensor import QuantizedTensorStorage
from ...utils import _empty_tensor

if TYPE_CHECKING:
    from typing import Self

Maybe = torch.Tensor | None
_PARTS = ("_rowwise_data", "_columnwise_data", "_rowwise_scale_inv", "_columnwise_scale_inv")


class Float8BlockwiseQTensorStorage(QuantizedTensorStorage):
    """Two copies, one with blocks along rows and one along columns.

    :param rowwise_data: [..., columns], uint8, or None.
    :param rowwise_scale_inv: float32 scale_inv, padded to multiples of four: [columns / 128, rows]
        for blocks of 1 x 128, [rows / 128, columns / 128] for 128 x 128.
    :param columnwise_data: [columns, ...], uint8, or None.
    :param columnwise_scale_inv: likewise: [rows / 128, columns] or [columns / 128, rows / 128].
    :param fp8_dtype: the format.
    :param quantizer: what quantizes into this storage; it is copied.
    :param is_2D_scaled: blocks of 128 x 128.
    """

    _rowwise_data: Maybe
    _columnwise_data: Maybe
    _quantizer: Any
    _fp8_dtype: DType
    _rowwise_scale_inv: Maybe
    _columnwise_scale_inv: Maybe
    _is_2D_scaled: bool

    def __new__(
        cls,
        rowwise_data: Maybe,
        rowwise_scale_inv: Maybe,
        columnwise_data: Maybe,
        columnwise_scale_inv: Maybe,
        fp8_dtype: DType,
        quantizer: Any,
        is_2D_scaled: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Self:
        """A storage, or the tensor that a subclass is."""
        if cls is Float8BlockwiseQTensorStorage:
            instance = object.__new__(cls)
        else:
            numbers = rowwise_data if rowwise_data is not None else columnwise_data
            if numbers is not None:
                kwargs.setdefault("device", numbers.device)
            instance = super().__new__(cls, *args, **kwargs)
        instance._rowwise_data = rowwise_data
        instance._columnwise_data = columnwise_data
        instance._quantizer = None if quantizer is None else quantizer.copy()
        instance._fp8_dtype = fp8_dtype
        instance._rowwise_scale_inv = rowwise_scale_inv
        instance._columnwise_scale_inv = columnwise_scale_inv
        instance._is_2D_scaled = is_2D_scaled
        return instance

    def clear(self) -> None:
        """Release the memory."""
        for name in _PARTS:
            part = getattr(self, name)
            if part is not None:
                part.data = _empty_tensor()

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copy numbers and scale_inv.

        :raises TypeError: another kind of storage.
        :raises RuntimeError: another format or other blocks.
        """
        if not isinstance(src, Float8BlockwiseQTensorStorage):
            raise TypeError("copy_from_storage expects Float8BlockwiseQTensorStorage")
        if self._fp8_dtype != src._fp8_dtype:
            raise RuntimeError("FP8 dtype mismatch in copy_from_storage")
        if self._is_2D_scaled != src._is_2D_scaled:
            raise RuntimeError("Scale layout mismatch in copy_from_storage")
        for name in _PARTS:
            mine, other = getattr(self, name), getattr(src, name)
            if mine is not None and other is not None:
                mine.copy_(other)

    def get_metadata(self) -> dict[str, Any]:
        """Keyword arguments of the constructor."""
        return {
            "rowwise_data": self._rowwise_data,
            "rowwise_scale_inv": self._rowwise_scale_inv,
            "columnwise_data": self._columnwise_data,
            "columnwise_scale_inv": self._columnwise_scale_inv,
            "fp8_dtype": self._fp8_dtype,
            "quantizer": self._quantizer,
            "is_2D_scaled": self._is_2D_scaled,
        }

    def prepare_for_saving(self) -> tuple[list[Maybe], Self]:
        """Take numbers and scale_inv out."""
        parts = [getattr(self, name) for name in _PARTS]
        for name in _PARTS:
            setattr(self, name, None)
        return parts, self

    def restore_from_saved(self, tensors: Sequence[Maybe]) -> Sequence[Maybe]:
        """Put them back."""
        for name, part in zip(_PARTS, tensors, strict=False):
            setattr(self, name, part)
        return tensors[len(_PARTS) :]

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:
        """Both copies' numbers, or one's.

        :raises ValueError: neither is asked for.
        """
        if rowwise_data and columnwise_data:
            return self._rowwise_data, self._columnwise_data
        if rowwise_data:
            return self._rowwise_data
        if columnwise_data:
            return self._columnwise_data
        raise ValueError("No data to get, both rowwise_data and columnwise_data are False")

    def _operand(self, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(numbers [rows, k], scale_inv): a matrix that a product reads along what it sums over.

        :param by_columns: the product sums over the rows; the copy with blocks along them is read.
        :raises RuntimeError: the copy that is needed was dropped.
        """
        data = self._columnwise_data if by_columns else self._rowwise_data
        scale_inv = self._columnwise_scale_inv if by_columns else self._rowwise_scale_inv
        if data is None and by_columns and self._is_2D_scaled:
            self._create_columnwise()
            data, scale_inv = self._columnwise_data, self._columnwise_scale_inv
        if data is None or scale_inv is None:
            which = "columns" if by_columns else "rows"
            raise RuntimeError(f"this FP8 tensor has no copy with blocks along its {which}")
        width = data.shape[0] if by_columns else data.shape[-1]
        numbers = data.reshape(width, -1) if by_columns else data.reshape(-1, width)
        rows, k = numbers.shape
        numbers = numbers.view(TE_DType_To_Torch[self._fp8_dtype])
        # Factors are kept as the library's products read them: padded to multiples of four, and
        # those of 1 x 128 blocks transposed.
        if self._is_2D_scaled:
            return numbers, scale_inv[:, : -(-k // 128)]
        return numbers, scale_inv[:, :rows].t()

    def dequantize(self, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The numbers in ``dtype``, from the copy with blocks along rows if it is there."""
        by_columns = self._rowwise_data is None
        data = self._columnwise_data if by_columns else self._rowwise_data
        assert data is not None, "No data to dequantize"
        if not data.numel():
            return torch.empty(self.size(), dtype=dtype, device=data.device)
        if not data.dim():
            factor = self._columnwise_scale_inv if by_columns else self._rowwise_scale_inv
            assert factor is not None
            wide = data.view(TE_DType_To_Torch[self._fp8_dtype]).float() * factor.flatten()[0]
            return wide.to(dtype)
        numbers, scale_inv = self._operand(by_columns)
        rows, k = numbers.shape
        spread = scale_inv.repeat_interleave(128, 0)[:rows] if self._is_2D_scaled else scale_inv
        wide = numbers.float() * spread.repeat_interleave(128, 1)[:, :k]
        if by_columns:
            wide = wide.t()
        return wide.to(dtype).contiguous().view(self.size())

    def size(self, *args: Any, **kwargs: Any) -> Any:
        """Sizes of the tensor."""
        if self._rowwise_data is not None:
            return self._rowwise_data.size(*args, **kwargs)
        assert self._columnwise_data is not None
        transposed = self._columnwise_data.size()
        size = torch.Size([*transposed[1:], *transposed[:1]])
        return size[args[0]] if args else size

    def _create_columnwise(self) -> None:
        """Make the other copy; only square blocks have the same scale_inv in both."""
        assert self._is_2D_scaled, "Cannot create columnwise data when not using 2D scaling."
        assert self._rowwise_data is not None
        assert self._rowwise_scale_inv is not None
        self._columnwise_data = fp8_transpose(
            self._rowwise_data.contiguous(), self._fp8_dtype, out=self._columnwise_data
        )
        down = -(-self._columnwise_data.shape[0] // 128)
        across = self._rowwise_scale_inv.shape[0]
        if self._columnwise_scale_inv is None:
            self._columnwise_scale_inv = self._rowwise_scale_inv.new_zeros(
                down, -(-across // 4) * 4
            )
        self._columnwise_scale_inv[:, :across].copy_(self._rowwise_scale_inv[:, :down].t())

    def _transpose_columnwise_data(self) -> None:
        """Turn the copy with blocks along columns round."""
        if self._columnwise_data is not None:
            self._columnwise_data = fp8_transpose(self._columnwise_data, self._fp8_dtype)

    def __repr__(self) -> str:
        kept = "columnwise" if self._rowwise_data is None else "rowwise"
        return (
            f"{type(self).__name__}(fp8_dtype={self._fp8_dtype}, "
            f"{kept}_scaled_data={self.dequantize()})"
        )

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Make or drop a copy.

        :raises AssertionError: a copy that is needed cannot be made, or none would be left.
        """
        has = self.get_usages()
        rowwise = has["rowwise"] if rowwise_usage is None else rowwise_usage
        columnwise = has["columnwise"] if columnwise_usage is None else columnwise_usage
        assert columnwise or rowwise, "Must retain some data either columnwise or rowwise"
        if rowwise:
            complete = self._rowwise_data is not None and self._rowwise_scale_inv is not None
            assert complete, "Cannot update to rowwise usage."
        missing = self._columnwise_data is None or self._columnwise_scale_inv is None
        if columnwise and missing:
            can_be_made = self._is_2D_scaled and rowwise
            assert can_be_made, "Cannot update to columnwise usage."
            self._create_columnwise()
        if not rowwise:
            self._rowwise_data = self._rowwise_scale_inv = None
        if not columnwise:
            self._columnwise_data = self._columnwise_scale_inv = None

    def get_usages(self) -> dict[str, bool]:
        """Which copies there are."""
        return {
            "rowwise": self._rowwise_data is not None,
            "columnwise": self._columnwise_data is not None,
        }
