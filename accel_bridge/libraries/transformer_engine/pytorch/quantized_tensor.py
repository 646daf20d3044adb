"""Base classes of quantized tensors and of what makes them.

Source: transformer_engine/pytorch/quantized_tensor.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils._pytree import tree_map

from .tensor._quantization_helpers import _IdentityFunc, _QuantizeFunc, _stride_from_shape

if TYPE_CHECKING:
    from typing import Self

aten = torch.ops.aten


def _missing(owner: object, method: str) -> NoReturn:
    raise NotImplementedError(f"{type(owner).__name__} class does not implement {method}")


class QuantizedTensorStorage:
    """The numbers and scales of a quantized tensor, without a tensor's interface.

    A quantized tensor class inherits from its storage class and from :class:`QuantizedTensor`.
    Storages are for use inside autograd functions, where they cost less.
    """

    _quantizer: Any

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Make or drop the copies that products read by rows or by columns; None leaves one."""
        _missing(self, "update_usage")

    def get_usages(self) -> dict[str, bool]:
        """Which copies there are."""
        _missing(self, "get_usages")

    def get_metadata(self) -> dict[str, Any]:
        """Keyword arguments that make another tensor of the same parts."""
        _missing(self, "get_metadata")

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:
        """The copies' tensors: both, or the one asked for."""
        _missing(self, "get_data_tensors")

    def clear(self) -> None:
        """Release the memory."""
        _missing(self, "clear")

    def prepare_for_saving(self) -> tuple[list[torch.Tensor | None], Self]:
        """Take the tensors out, for ``save_for_backward``; what is left refers to none."""
        _missing(self, "prepare_for_saving")

    def dequantize(self, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The numbers as an ordinary tensor."""
        _missing(self, "dequantize")

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Put them back; returns those that belong to others."""
        _missing(self, "restore_from_saved")

    def _get_quantizer(self) -> Any:
        return self._build_default_quantizer() if self._quantizer is None else self._quantizer

    def _build_default_quantizer(self) -> Quantizer:
        raise ValueError(
            f"{type(self).__name__} has no quantizer "
            "and no default quantizer is available defined in the subclass."
        )

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None) -> Self:
        """Overwrite with ``tensor``, unless ``noop_flag`` holds a 1."""
        self._get_quantizer().update_quantized(tensor, self, noop_flag=noop_flag)
        return self

    def update_quantizer(self, quantizer: Quantizer) -> None:
        """Replace the quantizer.

        :raises RuntimeError: there was none.
        """
        if self._quantizer is None:
            raise RuntimeError("To be updated, quantizer must be set")
        if self._quantizer is not quantizer:
            warnings.warn(
                "Quantizer is being updated, this may affect model behavior", stacklevel=2
            )
            self._quantizer = quantizer

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copy another storage's numbers and scales, without rounding."""
        _missing(self, "copy_from_storage")


def prepare_for_saving(*tensors: Any) -> tuple[list[Any], list[Any]]:
    """What ``save_for_backward`` takes, and what :func:`restore_from_saved` needs besides."""
    parts: list[Any] = []
    owners: list[Any] = []
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            parts.append(tensor)
            owners.append(None)
        else:
            own, owner = tensor.prepare_for_saving()
            parts += own
            owners.append(owner)
    return parts, owners


def restore_from_saved(
    tensors: list[Any], saved_tensors: Sequence[Any], return_saved_tensors: bool = False
) -> Any:
    """The tensors that :func:`prepare_for_saving` took apart; and the rest, if asked for."""
    restored = []
    rest = list(saved_tensors)
    for owner in tensors:
        if owner is None or isinstance(owner, torch.Tensor):
            restored.append(rest.pop(0))
        else:
            rest = list(owner.restore_from_saved(rest))
            restored.append(owner)
    return (restored, rest) if return_saved_tensors else restored


class Quantizer:
    """Makes quantized tensors.

    :param rowwise: make the copy that products read by rows.
    :param columnwise: make the copy that products read by columns.

    ``internal`` asks for storages instead of tensors; ``optimize_for_gemm`` says that nothing but
    products will read the result.
    """

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise
        self.internal = False
        self.optimize_for_gemm = False

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rowwise_usage={self.rowwise_usage}, "
            f"columnwise_usage={self.columnwise_usage}, internal={self.internal})"
        )

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        """Quantize ``src`` into ``dst``."""
        _missing(self, "update_quantized")

    def quantize(
        self, tensor: torch.Tensor, *, out: Any = None, dtype: torch.dtype | None = None
    ) -> Any:
        """A quantized copy, or ``out`` overwritten."""
        if out is not None:
            return self.update_quantized(tensor, out)
        if not self.internal and torch.is_grad_enabled():
            return _QuantizeFunc.apply(tensor, self.quantize_impl)  # type: ignore[no-untyped-call]
        return self.quantize_impl(tensor)

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """A quantized copy that autograd does not see."""
        _missing(self, "quantize_impl")

    def multi_quantize(self, list_of_tensors: Iterable[torch.Tensor]) -> list[Any]:
        """A quantized copy of each."""
        return [self.quantize(tensor) for tensor in list_of_tensors]

    def __call__(self, tensor: torch.Tensor) -> Any:
        return self.quantize(tensor)

    def copy(self) -> Self:
        """A quantizer that shares its scales with this one."""
        _missing(self, "copy")

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Any:
        """A quantized tensor that holds nothing yet."""
        _missing(self, "make_empty")

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Learn scales from ``tensor`` without quantizing it."""

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Choose the copies to make; None leaves one as it is."""
        if rowwise is not None:
            self.rowwise_usage = rowwise
        if columnwise is not None:
            self.columnwise_usage = columnwise

    def get_usages(self) -> dict[str, bool]:
        """Which copies are made."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def _get_compatible_recipe(self) -> Any:
        _missing(self, "_get_compatible_recipe")

    def supports_only_rowwise_all_gather(self) -> bool:
        """Whether a gathered tensor's other copy is made afterwards."""
        return False

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        """Whether each rank's part can be quantized by itself."""
        return True


def _same_copies(one: Any, other: Any) -> bool:
    return type(one._quantizer) is type(other._quantizer) and bool(
        one.get_usages() == other.get_usages()
    )


def _unwrapped(value: Any) -> Any:
    return value.dequantize(dtype=value.dtype) if isinstance(value, QuantizedTensor) else value


def _write_back(argument: Any, computed: Any, writes: bool) -> None:
    """Quantize what an operation in place has made of ``argument``'s numbers."""
    if isinstance(argument, (list, tuple)):
        for one, new in zip(argument, computed, strict=True):
            _write_back(one, new, writes)
    elif writes and isinstance(argument, QuantizedTensor):
        argument.quantize_(computed)


class QuantizedTensor(torch.Tensor):
    """A tensor whose numbers are quantized; it shows an ordinary dtype.

    Operations that no subclass knows run on the dequantized numbers.

    :param shape: sizes.
    :param dtype: what it shows.
    :param requires_grad: whether it takes part in differentiation.
    :param device: where it is; the current device by default.
    """

    # What the storage class brings along.
    _quantizer: Any

    def __new__(
        cls,
        shape: Iterable[int],
        dtype: torch.dtype,
        *,
        requires_grad: bool = False,
        device: torch.device | None = None,
    ) -> Self:
        shape = tuple(shape)
        return torch.Tensor._make_wrapper_subclass(
            cls,
            shape,
            strides=_stride_from_shape(shape),
            storage_offset=0,
            dtype=dtype,
            layout=torch.strided,
            requires_grad=requires_grad,
            device=torch.device("cuda") if device is None else device,
        )

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The numbers as an ordinary tensor."""
        _missing(self, "dequantize")

    def quantize_(self, tensor: torch.Tensor) -> Self:
        """Overwrite with ``tensor``."""
        _missing(self, "quantize_")

    def detach(self) -> Self:
        """The same numbers outside of the graph."""
        _missing(self, "detach")

    def clear(self) -> None:
        """Release the memory."""
        _missing(self, "clear")

    def get_metadata(self) -> dict[str, Any]:
        """Keyword arguments that make another tensor of the same parts."""
        _missing(self, "get_metadata")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(data={self.dequantize(dtype=self.dtype)})"

    def float(self) -> torch.Tensor:
        """The numbers in float32."""
        return self.dequantize(dtype=torch.float32)

    def bfloat16(self) -> torch.Tensor:
        """The numbers in bfloat16."""
        return self.dequantize(dtype=torch.bfloat16)

    def half(self) -> torch.Tensor:
        """The numbers in float16."""
        return self.dequantize(dtype=torch.float16)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """The numbers on the host, as an ordinary tensor."""
        return self.dequantize().cpu(memory_format=memory_format)

    def expand_as(self, other: torch.Tensor) -> torch.Tensor:
        """Torch's; with itself, which data parallelism does to find a graph's node, a view."""
        if other is self:
            node: torch.Tensor = _IdentityFunc.apply(self)  # type: ignore[no-untyped-call]
            return node
        return super().expand_as(other)

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Self:
        """The tensor in a memory format."""
        _missing(self, "contiguous")

    @classmethod
    def make_like(
        cls,
        tensor: Any,
        *,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """A tensor of the same parts."""
        return cls(
            shape=tensor.shape if shape is None else shape,
            dtype=tensor.dtype if dtype is None else dtype,
            requires_grad=requires_grad,
            **tensor.get_metadata(),
        )

    def to_dtype(self, dtype: torch.dtype) -> Self:
        """A tensor of the same parts that shows ``dtype``."""
        return type(self).make_like(self, dtype=dtype)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Results are ordinary tensors.
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})

    @classmethod
    def _copied(cls, dst: Any, src: Any, rest: Sequence[Any], options: dict[str, Any]) -> Any:
        """``dst.copy_(src)``, without rounding again where both have the same parts."""
        if not isinstance(dst, QuantizedTensor):
            return dst.copy_(_unwrapped(src), *rest, **options)
        if isinstance(src, QuantizedTensor) and _same_copies(dst, src):
            to, dst_owner = dst.prepare_for_saving()  # type: ignore[attr-defined]
            source, src_owner = src.prepare_for_saving()  # type: ignore[attr-defined]
            for one, other in zip(to, source, strict=True):
                if one is not None:
                    one.copy_(other, *rest, **options)
            dst_owner.restore_from_saved(to)
            src_owner.restore_from_saved(source)
        else:
            dst.quantize_(src)
        return dst

    @classmethod
    def _empty_like(cls, tensor: Any, options: dict[str, Any]) -> Any:
        quantizer = tensor._get_quantizer()
        usages = quantizer.get_usages()
        quantizer.set_usage(**tensor.get_usages())
        made = quantizer.make_empty(
            shape=tensor.shape,
            dtype=tensor.dtype,
            device=options.get("device") or tensor.device,
            requires_grad=options.get("requires_grad", tensor.requires_grad),
            pin_memory=bool(options.get("pin_memory")),
        )
        quantizer.set_usage(**usages)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func == aten.detach.default:
            return args[0].detach()
        if func == aten.copy_.default:
            return cls._copied(args[0], args[1], args[2:], options)
        if func == aten.view.default:
            raise NotImplementedError(f"{cls.__name__} class does not support tensor views")
        if func == aten.empty_like.default:
            return cls._empty_like(args[0], options)
        if func == aten.numel.default:
            return math.prod(args[0].size())
        if func == aten.is_pinned.default:
            parts = [part for part in args[0].get_data_tensors() if part is not None]
            return bool(parts) and func(parts[0])
        plain_args = tree_map(_unwrapped, args)
        plain_options = tree_map(_unwrapped, options)
        result = func(*plain_args, **plain_options)
        if not func._schema.is_mutable:
            return result
        for index, parameter in enumerate(func._schema.arguments):
            writes = parameter.alias_info is not None and parameter.alias_info.is_write
            if index < len(args):
                _write_back(args[index], plain_args[index], writes)
            elif parameter.name in options:
                _write_back(options[parameter.name], plain_options[parameter.name], writes)
        changed = [
            parameter.name if index >= len(args) else index
            for index, parameter in enumerate(func._schema.arguments)
            if parameter.alias_info is not None and parameter.alias_info.is_write
        ]
        first = changed[0] if changed else None
        if isinstance(first, int):
            return args[first]
        return options.get(first) if first is not None else None
