"""FP8 tensors with one scale, and their quantizers.

Source: transformer_engine/pytorch/tensor/float8_tensor.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...common.recipe import DelayedScaling, Float8CurrentScaling
from ..constants import dist_group_type
from ..cpp_extensions._enums import DType
from ..cpp_extensions._quantize import compute_amax, per_tensor
from ..quantized_tensor import QuantizedTensor
from ..utils import canonicalize_process_group, devices_match
from ._float8_quantizer import Float8AnyQuantizer
from ._float8_rules import KEPT_BY_FSDP, RULES, ViewFunc
from ._quantization_helpers import _IdentityFunc
from .storage.float8_tensor_storage import Float8TensorStorage, _FromFloat8Func

if TYPE_CHECKING:
    from typing import Self

Maybe = torch.Tensor | None
_RAW = (
    *(torch.uint8, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    *(torch.float8_e5m2, torch.float8_e5m2fnuz),
)


class _PerTensorQuantizer(Float8AnyQuantizer):
    """What delayed and current scaling have in common."""

    scale: torch.Tensor
    amax: torch.Tensor

    def _check_target(self, dst: Any) -> None:
        if not isinstance(dst, Float8Tensor):
            raise ValueError(f"{type(self).__name__} can only update Float8Tensor")

    def _parts(self, tensor: torch.Tensor, output: Any, noop: Maybe) -> dict[str, Any] | None:
        return per_tensor(tensor, self, output, noop)

    def _classes(self) -> tuple[type, type]:
        return Float8TensorStorage, Float8Tensor

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Float8Tensor:
        """A tensor that holds nothing yet."""
        shape = list(shape)
        place: Any = {"device": torch.device("cuda") if device is None else device}
        place["pin_memory"] = pin_memory

        def numbers(sizes: list[int]) -> torch.Tensor:
            return torch.empty(sizes, dtype=torch.uint8, **place)

        transposed = self.get_columnwise_shape(shape)
        return Float8Tensor(
            shape=shape,
            dtype=dtype,
            data=numbers(shape) if self.rowwise_usage else None,
            fp8_scale_inv=torch.empty(1, dtype=torch.float32, **place),
            fp8_dtype=self.dtype,
            requires_grad=requires_grad,
            data_transpose=numbers(transposed) if self.columnwise_usage else None,
            quantizer=self,
        )

    def get_columnwise_shape(self, rowwise_data_shape: Iterable[int]) -> list[int]:
        """Sizes of the transposed copy."""
        shape = list(rowwise_data_shape)
        return [*shape[-1:], *shape[:-1]]

    def _initial_scale_inv(self, data: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def create_tensor_from_data(
        self,
        data: torch.Tensor,
        fake_dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
        internal: bool = False,
    ) -> Any:
        """A tensor of given FP8 numbers.

        :raises AssertionError: numbers of another dtype than uint8 or FP8.
        """
        assert data.dtype in _RAW
        parts: dict[str, Any] = {
            "data": data,
            "fp8_scale_inv": self._initial_scale_inv(data),
            "fp8_dtype": self.dtype,
            "quantizer": self,
        }
        if internal:
            return Float8TensorStorage(**parts)
        return Float8Tensor(
            shape=data.shape, dtype=fake_dtype, requires_grad=requires_grad, **parts
        )

    def supports_only_rowwise_all_gather(self) -> bool:
        """True: the transpose is made after the gather."""
        return True


class Float8Quantizer(_PerTensorQuantizer):
    """Delayed scaling: scales come from the largest magnitudes of earlier steps.

    :param scale: one float32 number that tensors are multiplied with.
    :param amax: one float32 number: the largest magnitude of the last tensor.
    :param fp8_dtype: the format.
    :param rowwise: make the numbers.
    :param columnwise: make their transpose.
    """

    def __init__(
        self,
        scale: torch.Tensor,
        amax: torch.Tensor,
        fp8_dtype: DType,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.scale = scale
        self.amax = amax
        self.dtype = fp8_dtype

    def copy(self) -> Float8Quantizer:
        """A quantizer of the same scale."""
        usage = {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}
        other = Float8Quantizer(self.scale, self.amax, self.dtype, **usage)
        other.internal = self.internal
        other.optimize_for_gemm = self.optimize_for_gemm
        return other

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Take the largest magnitude of ``tensor``."""
        compute_amax(tensor.detach(), self.amax)

    def _initial_scale_inv(self, data: torch.Tensor) -> torch.Tensor:
        return self.scale.reciprocal()

    def _get_compatible_recipe(self) -> type[DelayedScaling]:
        return DelayedScaling


class Float8CurrentScalingQuantizer(_PerTensorQuantizer):
    """Current scaling: the scale comes from the tensor itself.

    :param fp8_dtype: the format.
    :param device: where its buffers are.
    :param rowwise: make the numbers.
    :param columnwise: make their transpose.
    :param use_existing_amax: take the largest magnitude from ``amax``.
    :param with_amax_reduction: take the maximum over a group.
    :param amax_reduction_group: that group; all processes for None.
    :param force_pow_2_scales: scales are powers of two.
    :param amax_epsilon: least value taken for a largest magnitude.
    :param scale: buffer of one float32 number.
    :param amax: buffer of one float32 number.
    """

    def __init__(
        self,
        fp8_dtype: DType,
        device: torch.device | str | int,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        use_existing_amax: bool = False,
        with_amax_reduction: bool = False,
        amax_reduction_group: dist_group_type | None = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
        scale: Maybe = None,
        amax: Maybe = None,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.scale = torch.empty(1, device=device, dtype=torch.float32) if scale is None else scale
        self.amax = torch.empty(1, device=device, dtype=torch.float32) if amax is None else amax
        self.dtype = fp8_dtype
        self.use_existing_amax = use_existing_amax
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.force_pow_2_scales = force_pow_2_scales
        self.amax_epsilon = amax_epsilon

    def copy(self) -> Float8CurrentScalingQuantizer:
        """A quantizer of the same buffers."""
        other = Float8CurrentScalingQuantizer(
            self.dtype,
            self.scale.device,
            rowwise=self.rowwise_usage,
            columnwise=self.columnwise_usage,
            use_existing_amax=self.use_existing_amax,
            with_amax_reduction=self.with_amax_reduction,
            amax_reduction_group=self.amax_reduction_group,
            force_pow_2_scales=self.force_pow_2_scales,
            amax_epsilon=self.amax_epsilon,
            scale=self.scale,
            amax=self.amax,
        )
        other.internal = self.internal
        other.optimize_for_gemm = self.optimize_for_gemm
        return other

    def _initial_scale_inv(self, data: torch.Tensor) -> torch.Tensor:
        return torch.empty(1, dtype=torch.float32, device=data.device)

    def _canonicalized_amax_reduction_group(self) -> dist_group_type:
        return canonicalize_process_group(self.amax_reduction_group)

    def _get_compatible_recipe(self) -> type[Float8CurrentScaling]:
        return Float8CurrentScaling


class Float8Tensor(Float8TensorStorage, QuantizedTensor):
    """A tensor of FP8 numbers with one scale.

    :param shape: sizes.
    :param dtype: what it shows.
    :param data: the numbers, uint8.
    :param fp8_scale_inv: [1], float32: factor that dequantizes.
    :param fp8_dtype: the format.
    :param requires_grad: whether it takes part in differentiation.
    :param data_transpose: the transposed numbers.
    :param quantizer: what quantizes into it.
    """

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"Float8Tensor(fp8_dtype={self._fp8_dtype}, scale_inv={self._scale_inv.item()}, "
            f"data={self.dequantize()})"
        )

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The numbers in ``dtype``, or in the dtype that it shows; differentiable."""
        whole = self.contiguous()
        chosen = self.dtype if dtype is None else dtype
        if torch.is_grad_enabled():
            numbers: torch.Tensor = _FromFloat8Func.apply(whole, chosen)  # type: ignore[no-untyped-call]
            return numbers
        return _FromFloat8Func.forward(None, whole, chosen)

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: Maybe = None) -> Self:
        """Overwrite with ``tensor``, unless ``noop_flag`` holds a 1."""
        plain = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        self._get_quantizer().update_quantized(plain, self, noop_flag=noop_flag)
        return self

    def detach(self) -> Float8Tensor:
        """The same numbers outside of the graph."""
        return Float8Tensor.make_like(self)

    def clone(self) -> Any:  # type: ignore[override]
        """A copy of numbers and transpose."""
        assert self._data is not None
        transposed = None if self._transpose is None else self._transpose.detach().clone()
        parts = {"data": self._data.detach().clone(), "data_transpose": transposed}
        return _IdentityFunc.apply(self, parts)  # type: ignore[no-untyped-call]

    def view(self, *shape: Any) -> Any:
        """The same numbers in another shape; differentiable."""
        return ViewFunc.apply(self, shape)  # type: ignore[no-untyped-call]

    def reshape(self, *shape: Any) -> Any:
        """The same numbers in another shape; differentiable."""
        return ViewFunc.apply(self.contiguous(), shape)  # type: ignore[no-untyped-call]

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        """Itself, or a copy in the memory format."""
        parts = [part for part in (self._data, self._transpose) if part is not None]
        if all(part.is_contiguous(memory_format=memory_format) for part in parts):
            return self
        transposed = None if self._transpose_invalid else self._transpose
        made = {
            name: None if part is None else part.contiguous(memory_format=memory_format)
            for name, part in (("data", self._data), ("data_transpose", transposed))
        }
        return _IdentityFunc.apply(self, made)  # type: ignore[no-untyped-call]

    def _reset_caches(self) -> None:
        """The transpose is out of date."""
        self._transpose_invalid = True

    def remove_caches(self) -> None:
        """Drop the transpose."""
        self._transpose_invalid = True
        self._transpose = None

    @classmethod
    def make_like(
        cls,
        tensor: Any,
        *,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        data: Maybe = None,
        data_transpose: Maybe = None,
    ) -> Float8Tensor:
        """A tensor of the same parts, or of other numbers with the same scale."""
        parts = tensor.get_metadata()
        if tensor._transpose_invalid:
            parts["data_transpose"] = None
        if data is not None:
            parts |= {"data": data, "data_transpose": data_transpose}
            shape = data.shape if shape is None else shape
        elif data_transpose is not None:
            parts["data_transpose"] = data_transpose
        return cls(
            shape=tensor.shape if shape is None else shape,
            dtype=tensor.dtype if dtype is None else dtype,
            requires_grad=requires_grad,
            **parts,
        )

    def _with_numbers(self, data: torch.Tensor, transposed: Maybe = None) -> Float8Tensor:
        return Float8Tensor.make_like(self, data=data, data_transpose=transposed)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        rule = RULES.get(func)
        if rule is not None:
            done = rule(args[0], func, args, options)
            if done is not NotImplemented:
                return done
        elif func in KEPT_BY_FSDP:
            warnings.warn(f"{func} of a {cls.__name__} gives an ordinary tensor", stacklevel=2)
        return super().__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def _make_in_reduce_ex(
        cls,
        data: torch.Tensor,
        fp8_dtype: DType,
        fp8_scale_inv: torch.Tensor,
        dtype: torch.dtype,
        shape: Sequence[int],
    ) -> Float8Tensor:
        """What a pickle calls; its name and arguments are part of checkpoints."""
        return Float8Tensor(
            data=data, fp8_dtype=fp8_dtype, fp8_scale_inv=fp8_scale_inv, dtype=dtype, shape=shape
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        parts = (self._data, self._fp8_dtype, self._scale_inv, self.dtype, self.shape)
        return Float8Tensor._make_in_reduce_ex, parts

    def _get_data(self) -> Any:
        return super().data

    @torch.no_grad()
    def _set_data(self, tensor: Any) -> None:
        """Take over the numbers of an FP8 tensor; quantize any other."""
        device = tensor.device if tensor.is_cuda else self.device
        if not devices_match(device, tensor.device):
            tensor = tensor.to(device=device)
        if not isinstance(tensor, Float8Tensor):
            assert self._quantizer is not None, "Can't quantize without a quantizer"
            self._quantizer.internal = False
            self.data = self._quantizer.quantize(tensor)
            if self.requires_grad != tensor.requires_grad:
                self.requires_grad_(tensor.requires_grad)
            return
        same = self.size() == tensor.size() and self.dtype == tensor.dtype
        if not same or not devices_match(self.device, device):
            shell = QuantizedTensor.__new__(
                Float8Tensor,
                tensor.size(),
                tensor.dtype,
                requires_grad=tensor.requires_grad,
                device=device,
            )
            plain: Any = torch.Tensor.data
            plain.__set__(self, shell)
        self._data = tensor._data
        self._quantizer = None if tensor._quantizer is None else tensor._quantizer.copy()
        self._fp8_dtype = tensor._fp8_dtype
        self._scale_inv = tensor._scale_inv
        self._transpose = tensor._transpose
        self._transpose_invalid = tensor._transpose_invalid

    data = property(_get_data, _set_data)
