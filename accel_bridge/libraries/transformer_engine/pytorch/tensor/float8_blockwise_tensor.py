"""FP8 tensors with block scales, and their quantizer.

Source: transformer_engine/pytorch/tensor/float8_blockwise_tensor.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...common.recipe import Float8BlockScaling
from ..cpp_extensions._enums import DType
from ..cpp_extensions._quantize_blocks import by_blocks
from ..quantized_tensor import QuantizedTensor
from ..utils import devices_match, round_up_to_nearest_multiple
from ._float8_quantizer import Float8AnyQuantizer
from ._quantization_helpers import _IdentityFunc, canonical_shape
from .storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage

if TYPE_CHECKING:
    from typing import Self

aten = torch.ops.aten
Maybe = torch.Tensor | None


class Float8BlockQuantizer(Float8AnyQuantizer):
    """Block scaling: every block has a scale from its own numbers.

    :param fp8_dtype: the format.
    :param rowwise: make the copy with blocks along rows.
    :param columnwise: make the copy with blocks along columns.
    :param amax_epsilon: least value taken for a block's largest magnitude.
    :param force_pow_2_scales: scales are powers of two.
    :param block_scaling_dim: 1 for blocks of 1 x 128, 2 for 128 x 128.
    """

    def __init__(
        self,
        fp8_dtype: DType,
        *,
        rowwise: bool,
        columnwise: bool,
        amax_epsilon: float = 0.0,
        force_pow_2_scales: bool = True,
        block_scaling_dim: int = 2,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = fp8_dtype
        self.block_len = 128
        self.force_pow_2_scales = force_pow_2_scales
        self.amax_epsilon = amax_epsilon
        self.block_scaling_dim = block_scaling_dim

    def copy(self) -> Float8BlockQuantizer:
        """A quantizer with the same options."""
        other = Float8BlockQuantizer(
            self.dtype,
            rowwise=self.rowwise_usage,
            columnwise=self.columnwise_usage,
            amax_epsilon=self.amax_epsilon,
            force_pow_2_scales=self.force_pow_2_scales,
            block_scaling_dim=self.block_scaling_dim,
        )
        other.internal = self.internal
        other.optimize_for_gemm = self.optimize_for_gemm
        return other

    def _check_target(self, dst: Any) -> None:
        assert isinstance(dst, Float8BlockwiseQTensor), (
            f"Cannot store quantized blockwise tensor in {type(dst)} type."
        )

    def _parts(self, tensor: torch.Tensor, output: Any, noop: Maybe) -> dict[str, Any] | None:
        return by_blocks(tensor, self, output, noop)

    def _classes(self) -> tuple[type, type]:
        return Float8BlockwiseQTensorStorage, Float8BlockwiseQTensor

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, int]:
        """Sizes of the scale_inv, padded to multiples of four.

        :raises RuntimeError: blocks of neither one nor two dimensions.
        """
        shape = tuple(shape)
        rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
        if self.block_scaling_dim not in (1, 2):
            raise RuntimeError(
                "Only 1D or 2D blocks are supported, "
                f"but got block_scaling_dim={self.block_scaling_dim}"
            )
        blocks = (-(-rows // self.block_len), -(-columns // self.block_len))
        if self.block_scaling_dim == 2:
            down, across = reversed(blocks) if columnwise else blocks
        else:
            down, across = (blocks[0], columns) if columnwise else (blocks[1], rows)
        return down, round_up_to_nearest_multiple(across, 4)

    def get_columnwise_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """Sizes of the copy with blocks along columns."""
        shape = tuple(shape)
        return (*shape[-1:], *shape[:-1])

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        """Whether blocks do not cross the tensor's edges."""
        shape = inp.size()
        if len(shape) < 2:
            return False
        rows = math.prod(shape[:-1])
        return shape[-1] % self.block_len == 0 and rows % self.block_len == 0

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Float8BlockwiseQTensor:
        """A tensor that holds nothing yet."""
        shape = tuple(shape)
        place: Any = {"device": torch.device("cuda") if device is None else device}
        place["pin_memory"] = pin_memory
        parts: dict[str, Maybe] = {}
        for name, wanted, sizes in (
            ("rowwise", self.rowwise_usage, shape),
            ("columnwise", self.columnwise_usage, self.get_columnwise_shape(shape)),
        ):
            scales = self.get_scale_shape(shape, columnwise=name == "columnwise")
            parts[f"{name}_data"] = (
                torch.empty(sizes, dtype=torch.uint8, **place) if wanted else None
            )
            parts[f"{name}_scale_inv"] = (
                torch.empty(scales, dtype=torch.float32, **place) if wanted else None
            )
        return Float8BlockwiseQTensor(
            shape=shape,
            dtype=dtype,
            fp8_dtype=self.dtype,
            quantizer=self,
            is_2D_scaled=self.block_scaling_dim == 2,
            requires_grad=requires_grad,
            **parts,
        )

    def _get_compatible_recipe(self) -> type[Float8BlockScaling]:
        return Float8BlockScaling


class Float8BlockwiseQTensor(Float8BlockwiseQTensorStorage, QuantizedTensor):
    """A tensor of FP8 numbers with block scales; see its storage for the parts.

    :param shape: sizes.
    :param dtype: what it shows.
    :param requires_grad: whether it takes part in differentiation.
    """

    def __new__(
        cls,
        *args: Any,
        rowwise_data: Maybe,
        rowwise_scale_inv: Maybe,
        columnwise_data: Maybe,
        columnwise_scale_inv: Maybe,
        fp8_dtype: DType,
        quantizer: Any,
        is_2D_scaled: bool,
        **kwargs: Any,
    ) -> Self:
        """The storage takes its parts by place."""
        return super().__new__(
            cls,
            rowwise_data,
            rowwise_scale_inv,
            columnwise_data,
            columnwise_scale_inv,
            fp8_dtype,
            quantizer,
            is_2D_scaled,
            *args,
            **kwargs,
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"Float8BlockwiseQTensor(fp8_dtype={self._fp8_dtype}, "
            f"is_2D_scaled={self._is_2D_scaled}, data={self.dequantize()})"
        )

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: Maybe = None) -> Self:
        """Overwrite with ``tensor``, unless ``noop_flag`` holds a 1."""
        plain = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        self._get_quantizer().update_quantized(plain, self, noop_flag=noop_flag)
        return self

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The numbers in ``dtype``, or in the dtype that it shows."""
        return super().dequantize(dtype=self.dtype if dtype is None else dtype)

    def detach(self) -> Float8BlockwiseQTensor:
        """The same numbers outside of the graph."""
        return Float8BlockwiseQTensor.make_like(self)

    def clone(self) -> Any:  # type: ignore[override]
        """A copy of the numbers."""
        parts = {
            name: None if part is None else part.detach().clone()
            for name, part in (
                ("rowwise_data", self._rowwise_data),
                ("columnwise_data", self._columnwise_data),
            )
        }
        return _IdentityFunc.apply(self, parts)  # type: ignore[no-untyped-call]

    def view(self, *shape: Any) -> Any:
        """The same numbers in another shape that leaves blocks whole; differentiable."""
        return _ViewFunc.apply(self, shape)  # type: ignore[no-untyped-call]

    def reshape(self, *shape: Any) -> Any:
        """The same numbers in another shape that leaves blocks whole; differentiable."""
        return _ViewFunc.apply(self, shape)  # type: ignore[no-untyped-call]

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory of one copy's numbers."""
        data = self._columnwise_data if self._rowwise_data is None else self._rowwise_data
        if data is None:
            return torch.UntypedStorage(0, device=self.device)
        return data.untyped_storage()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == aten.view.default and args[0]._rowwise_data is not None:
            if list(func(args[0]._rowwise_data, *args[1:]).shape) != list(args[0].shape):
                raise NotImplementedError("a view of another shape would cut blocks")
            return Float8BlockwiseQTensor.make_like(args[0])
        if func == aten.record_stream.default:
            tensor, stream = args
            for part in (*tensor.get_data_tensors(), tensor._rowwise_scale_inv):
                if part is not None and part.is_cuda:
                    part.record_stream(stream)
            if tensor._columnwise_scale_inv is not None and tensor._columnwise_scale_inv.is_cuda:
                tensor._columnwise_scale_inv.record_stream(stream)
            return None
        return super().__torch_dispatch__(func, types, args, kwargs)

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Self:
        """Itself.

        :raises ValueError: it is in another memory format.
        """
        parts = [part for part in self.get_data_tensors() if part is not None]
        if self._rowwise_data is None or not all(
            part.is_contiguous(memory_format=memory_format) for part in parts
        ):
            raise ValueError("Float8BlockwiseQTensor does not support different memory formats!")
        return self

    @classmethod
    def _make_in_reduce_ex(
        cls,
        shape: torch.Size,
        rowwise_data: Maybe,
        rowwise_scale_inv: Maybe,
        columnwise_data: Maybe,
        columnwise_scale_inv: Maybe,
        fp8_dtype: DType,
        dtype: torch.dtype,
        quantizer: Any,
        is_2D_scaled: bool,
        data_format: Any = None,
    ) -> Float8BlockwiseQTensor:
        """What a pickle calls; its name and arguments are part of checkpoints."""
        return Float8BlockwiseQTensor(
            shape=shape,
            dtype=dtype,
            rowwise_data=rowwise_data,
            rowwise_scale_inv=rowwise_scale_inv,
            columnwise_data=columnwise_data,
            columnwise_scale_inv=columnwise_scale_inv,
            fp8_dtype=fp8_dtype,
            quantizer=quantizer,
            is_2D_scaled=is_2D_scaled,
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (
            Float8BlockwiseQTensor._make_in_reduce_ex,
            (
                self.shape,
                self._rowwise_data,
                self._rowwise_scale_inv,
                self._columnwise_data,
                self._columnwise_scale_inv,
                self._fp8_dtype,
                self.dtype,
                self._quantizer,
                self._is_2D_scaled,
                None,
            ),
        )

    def _get_data(self) -> Any:
        return self

    @torch.no_grad()
    def _set_data(self, tensor: Any) -> None:
        """Take over the numbers of such a tensor; quantize any other.

        :raises ValueError: another shape.
        """
        device = tensor.device if tensor.is_cuda else self.device
        if self.size() != tensor.size() or self.stride() != tensor.stride():
            raise ValueError("Invalid tensor for updating Float8BlockwiseQTensor data")
        same = isinstance(tensor, Float8BlockwiseQTensor)
        if not same or not devices_match(self.device, device):
            quantizer = tensor._quantizer if same else self._quantizer
            assert quantizer is not None, "Can't quantize without a quantizer"
            quantizer.update_quantized(tensor, self)
            return
        self._rowwise_data = tensor._rowwise_data
        self._columnwise_data = tensor._columnwise_data
        self._quantizer = None if tensor._quantizer is None else tensor._quantizer.copy()
        self._fp8_dtype = tensor._fp8_dtype
        self._rowwise_scale_inv = tensor._rowwise_scale_inv
        self._columnwise_scale_inv = tensor._columnwise_scale_inv

    data = property(_get_data, _set_data)


def _viewed(tensor: Any, shape: Sequence[int]) -> Float8BlockwiseQTensor:
    """The same numbers in another shape."""
    parts = tensor.get_metadata()
    if parts["rowwise_data"] is not None:
        parts["rowwise_data"] = parts["rowwise_data"].view(*shape)
    if parts["columnwise_data"] is not None:
        parts["columnwise_data"] = parts["columnwise_data"].view(shape[-1], *shape[:-1])
    return Float8BlockwiseQTensor(
        shape=shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad, **parts
    )


class _ViewFunc(torch.autograd.Function):
    """The same numbers in another shape."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, shape: Sequence[Any] | None = None) -> Any:
        ctx.shape = tensor.shape
        if shape is None:
            return tensor
        sizes = canonical_shape(shape, tensor.shape)
        kept = 2 if tensor._is_2D_scaled else 1
        if list(sizes[-kept:]) != list(tensor.shape[-kept:]):
            raise RuntimeError(
                f"{kept}D scaled Float8BlockwiseQTensor does not support view of the last "
                f"dimensions (attempted to view dims={tuple(tensor.shape)} to {tuple(sizes)})"
            )
        return tensor if sizes == list(tensor.shape) else _viewed(tensor, sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        if isinstance(grads[0], Float8BlockwiseQTensor):
            return _viewed(grads[0], ctx.shape), None
        return grads[0].view(ctx.shape), None
