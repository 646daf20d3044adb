"""Base classes of quantized tensors and of what makes them.

Source: transformer_engine/pytorch/quantized_tensor.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from ._quantized_storage import (
    QuantizedTensorStorage,
    Quantizer,
    missing,
    prepare_for_saving,
    restore_from_saved,
)
from .tensor._quantization_helpers import _IdentityFunc, _stride_from_shape

__all__ = [
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "prepare_for_saving",
    "restore_from_saved",
]

if TYPE_CHECKING:
    from typing import Self

aten = torch.ops.aten


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
        missing(self, "dequantize")

    def quantize_(self, tensor: torch.Tensor) -> Self:
        """Overwrite with ``tensor``."""
        missing(self, "quantize_")

    def detach(self) -> Self:
        """The same numbers outside of the graph."""
        missing(self, "detach")

    def clear(self) -> None:
        """Release the memory."""
        missing(self, "clear")

    def get_metadata(self) -> dict[str, Any]:
        """Keyword arguments that make another tensor of the same parts."""
        missing(self, "get_metadata")

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
        missing(self, "contiguous")

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
