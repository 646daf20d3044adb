"""Current scaling as a user's quantizer: the library's example, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_bridge.kernels import SCALED_MATMUL, active, float8_scale

from ..quantized_tensor import QuantizedTensorStorage, Quantizer
from .quantization import GEMMType, MMParams

Maybe = torch.Tensor | None
_PARTS = ("data", "data_t", "scale", "scale_t")


def current_scaling_ref_quantizer_factory(role: str) -> CurrentScalingQuantizerRef | None:
    """For ``CustomRecipe``: E4M3 for inputs and weights, E5M2 for outputs' gradients."""
    dtypes = {
        "linear_input": torch.float8_e4m3fn,
        "linear_weight": torch.float8_e4m3fn,
        "linear_output": torch.float8_e5m2,
        "linear_grad_output": torch.float8_e5m2,
    }
    return CurrentScalingQuantizerRef(dtypes[role]) if role in dtypes else None


@dataclass(repr=False)
class CurrentScalingTensorRef(QuantizedTensorStorage):
    """FP8 numbers [rows, k] with one factor, and their transpose.

    :param data: the numbers.
    :param scale: [1], what they are multiplied with to dequantize them.
    :param data_t: the transposed numbers.
    :param scale_t: their factor.
    :param dtype: of what was quantized.
    :param device: where it is.
    :param quant_dtype: of the numbers.
    :param original_shape: of what was quantized.
    """

    data: Maybe = None
    scale: Maybe = None
    data_t: Maybe = None
    scale_t: Maybe = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    quant_dtype: torch.dtype | None = None
    original_shape: tuple[int, ...] | None = None
    _quantizer: Any = None
    custom = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dtype={self.dtype}, original_shape={self.original_shape})"

    def prepare_for_saving(self) -> tuple[list[Maybe], CurrentScalingTensorRef]:
        """Take the tensors out."""
        parts = [getattr(self, name) for name in _PARTS]
        for name in _PARTS:
            setattr(self, name, None)
        return parts, self

    def restore_from_saved(self, tensors: Sequence[Maybe]) -> Sequence[Maybe]:
        """Put them back."""
        for name, part in zip(_PARTS, tensors, strict=False):
            setattr(self, name, part)
        return tensors[len(_PARTS) :]

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Make the transpose, or drop a copy.

        :raises RuntimeError: the numbers, which were dropped, are needed.
        """
        if (rowwise_usage or (columnwise_usage and self.data_t is None)) and self.data is None:
            raise RuntimeError("Cannot generate FP8 data, even from FP8 data transpose")
        if columnwise_usage and self.data_t is None and self.data is not None:
            self.data_t, self.scale_t = self.data.t().contiguous(), self.scale
        if columnwise_usage is False:
            self.data_t = None
        if rowwise_usage is False:
            self.data = None

    def get_usages(self) -> dict[str, bool]:
        """Which copies there are."""
        return {"rowwise": self.data is not None, "columnwise": self.data_t is not None}

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The numbers in the dtype of what was quantized, or in ``dtype``."""
        numbers, scale = self.data, self.scale
        if numbers is None and self.data_t is not None:
            numbers, scale = self.data_t.t(), self.scale_t
        assert numbers is not None
        assert scale is not None
        assert self.original_shape is not None
        return (numbers.float() * scale).to(dtype or self.dtype).view(self.original_shape)

    def size(self, *args: int) -> Any:
        """Sizes of what was quantized."""
        assert self.original_shape is not None
        size = torch.Size(self.original_shape)
        return size[args[0]] if args else size

    @property
    def shape(self) -> torch.Size:
        """Sizes of what was quantized."""
        size: torch.Size = self.size()
        return size

    def view(self, *shape: Any) -> CurrentScalingTensorRef:
        """The same numbers under another shape of as many columns."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        whole = torch.empty(self.size(), device="meta").view(*sizes).shape
        parts = {name: getattr(self, name) for name in _PARTS}
        return CurrentScalingTensorRef(
            **parts,
            dtype=self.dtype,
            device=self.device,
            quant_dtype=self.quant_dtype,
            original_shape=tuple(whole),
            _quantizer=self._quantizer,
        )


class CurrentScalingQuantizerRef(Quantizer):
    """One scale from the tensor itself.

    :param dtype: FP8 dtype of the numbers.
    :param rowwise: make the numbers.
    :param columnwise: make their transpose.
    :param pow_2_scales: scales are powers of two.
    :param eps: least value taken for a largest magnitude.
    """

    custom = True

    def __init__(
        self,
        dtype: torch.dtype,
        rowwise: bool = True,
        columnwise: bool = True,
        pow_2_scales: bool = False,
        eps: float = 0.0,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.internal = True
        self.dtype = dtype
        self.pow_2_scales = pow_2_scales
        self.eps = eps
        self.with_amax_reduction = False
        self.amax_reduction_group = None

    def copy(self) -> CurrentScalingQuantizerRef:
        """A quantizer with the same options."""
        other = CurrentScalingQuantizerRef(
            self.dtype, self.rowwise_usage, self.columnwise_usage, self.pow_2_scales, self.eps
        )
        other.internal = self.internal
        return other

    def _quantized(self, tensor: torch.Tensor) -> dict[str, Any]:
        matrix = tensor.detach().reshape(-1, tensor.shape[-1]).float()
        amax = matrix.abs().amax().view(1)
        scale = float8_scale(amax, self.dtype, power_of_2=self.pow_2_scales, epsilon=self.eps)
        limit = torch.finfo(self.dtype).max
        numbers = (matrix * scale).clamp(-limit, limit).to(self.dtype)
        factor = scale.reciprocal()
        row, column = self.rowwise_usage, self.columnwise_usage
        return {
            "data": numbers if row else None,
            "scale": factor if row else None,
            "data_t": numbers.t().contiguous() if column else None,
            "scale_t": factor if column else None,
            "dtype": tensor.dtype,
            "quant_dtype": self.dtype,
            "original_shape": tuple(tensor.shape),
        }

    def quantize(self, tensor: torch.Tensor, **options: Any) -> CurrentScalingTensorRef:
        """A quantized copy."""
        return CurrentScalingTensorRef(
            **self._quantized(tensor), device=tensor.device, _quantizer=self
        )

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: Maybe = None
    ) -> CurrentScalingTensorRef:
        """Overwrite ``dst`` unless ``noop_flag`` holds a number other than 0."""
        if noop_flag is None or not noop_flag.item():
            for name, value in self._quantized(src).items():
                setattr(dst, name, value)
        done: CurrentScalingTensorRef = dst
        return done

    def qgemm(
        self,
        qx: torch.Tensor,
        qw: torch.Tensor,
        m_params: MMParams,
        out_dtype: torch.dtype,
        sx: torch.Tensor,
        sw: torch.Tensor,
        bias: Maybe = None,
        out: Maybe = None,
        accumulate: bool = False,
        gemm_type: GEMMType = GEMMType.FPROP,
        qresult_x: Any = None,
        qresult_w: Any = None,
    ) -> torch.Tensor:
        """``(qx * sx) @ (qw * sw)^T + bias``, added to ``out`` if ``accumulate``."""
        added = bias if bias is not None and bias.numel() else None
        product = active.kernel(SCALED_MATMUL)(
            qx, qw, sx, sw, dtype=out_dtype, bias=added, precise=m_params.use_split_accumulator
        )
        if not accumulate:
            return product
        assert out is not None, "Output tensor must be provided for accumulation."
        return out.add_(product)
