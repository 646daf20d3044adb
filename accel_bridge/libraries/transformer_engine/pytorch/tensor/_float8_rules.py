"""What torch's operations do to FP8 tensors with one scale, without dequantizing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._quantization_helpers import canonical_shape

aten = torch.ops.aten
Maybe = torch.Tensor | None


class ViewFunc(torch.autograd.Function):
    """The same numbers in another shape."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, shape: Sequence[Any] | None = None) -> Any:
        ctx.shape = tensor.shape
        if shape is None:
            return tensor.detach()
        sizes = canonical_shape(shape, tensor.shape)
        data = tensor._data.view(sizes)
        return tensor._with_numbers(data, tensor._matching_transpose(sizes))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].reshape(ctx.shape), None


def _valid_transpose(tensor: Any) -> Maybe:
    return None if tensor._transpose_invalid else tensor._transpose


def _view(tensor: Any, func: Any, args: Any, options: Any) -> Any:
    data = func(tensor._data, *args[1:], **options)
    return tensor._with_numbers(data, tensor._matching_transpose(data.shape))


def _part(tensor: Any, func: Any, args: Any, options: Any) -> Any:
    return tensor._with_numbers(func(tensor._data, *args[1:], **options))


def _split(tensor: Any, func: Any, args: Any, options: Any) -> Any:
    parts = func(tensor._data, *args[1:], **options)
    transposed: Any = [None] * len(parts)
    transpose = _valid_transpose(tensor)
    if transpose is not None:
        dim = options.get("dim", args[2] if len(args) > 2 else 0) % tensor.dim()
        transposed = func(transpose, args[1], 0 if dim == tensor.dim() - 1 else dim + 1)
    return [tensor._with_numbers(*pair) for pair in zip(parts, transposed, strict=True)]


def _new_zeros(tensor: Any, func: Any, args: Any, options: Any) -> Any:
    raw = {**options, "dtype": torch.uint8}
    data = func(tensor._data, args[1], **raw)
    transpose = _valid_transpose(tensor)
    size = list(args[1])
    transposed = None if transpose is None else func(transpose, [size[-1], *size[:-1]], **raw)
    made = tensor._with_numbers(data, transposed)
    made._scale_inv = tensor._scale_inv.detach().clone()
    return made


def _as_strided(tensor: Any, func: Any, args: Any, options: Any) -> Any:
    data = func(tensor._data, *args[1:], **options)
    transpose = _valid_transpose(tensor)
    if transpose is not None:
        size, stride = list(args[1]), list(args[2])
        # Only the whole tensor's transpose is known.
        whole = size == list(tensor.shape) and stride == list(tensor._data.stride())
        transpose = transpose if whole else None
    return tensor._with_numbers(data, transpose)


def _copy(dst: Any, func: Any, args: Any, options: Any) -> Any:
    src = args[1]
    if type(src) is not type(dst):
        return NotImplemented
    if dst._data is not None and src._data is not None:
        dst._data.copy_(src._data, *args[2:], **options)
    dst._scale_inv.copy_(src._scale_inv.view(dst._scale_inv.size()), *args[2:], **options)
    dst._fp8_dtype = src._fp8_dtype
    if dst._transpose is not None and not dst._transpose_invalid:
        if src._transpose_invalid or src._transpose is None:
            dst._create_transpose()
        else:
            dst._transpose.copy_(src._transpose, *args[2:], **options)
    return dst


RULES: dict[Any, Any] = {
    aten.view.default: _view,
    aten.slice.Tensor: _part,
    aten.select.int: _part,
    aten.split.Tensor: _split,
    aten.new_zeros.default: _new_zeros,
    aten.as_strided.default: _as_strided,
    aten.copy_.default: _copy,
    aten.detach.default: lambda tensor, *_: tensor.detach(),
    aten.clone.default: lambda tensor, *_: tensor.clone(),
}
#: Fully sharded training needs these to give FP8 tensors.
KEPT_BY_FSDP = {aten._to_copy.default, aten._pin_memory.default}
