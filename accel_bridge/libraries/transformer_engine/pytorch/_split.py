"""Splitting a tensor so that the gradients of its parts need not be copied together."""

from __future__ import annotations

from typing import Any

import torch

from .quantized_tensor import QuantizedTensorStorage


def _data_of(tensor: Any) -> torch.Tensor:
    """The tensor itself, or the FP8 numbers of a quantized one."""
    quantized = isinstance(tensor, QuantizedTensorStorage)
    data: torch.Tensor = getattr(tensor, "_data") if quantized else tensor  # noqa: B009
    return data


def _with_data(like: Any, data: torch.Tensor) -> Any:
    """``data``, quantized as ``like`` is."""
    if not isinstance(like, QuantizedTensorStorage):
        return data
    options = {**like.get_metadata(), "data": data, "data_transpose": None}
    if isinstance(like, torch.Tensor):
        options |= {"shape": data.shape, "dtype": like.dtype}
    return type(like)(**options)


def combine_tensors(tensors: list[torch.Tensor], dim: int) -> torch.Tensor:
    """The tensor of which ``tensors`` are views, one beside the other along a new ``dim``."""
    first = _data_of(tensors[0])
    shape, stride = list(first.shape), list(first.stride())
    shape.insert(dim, len(tensors))
    stride.insert(dim, stride[dim - 1] // len(tensors))
    combined: torch.Tensor = _with_data(
        tensors[0], first.as_strided(shape, stride, first.storage_offset())
    )
    return combined


def _joined(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    """``torch.cat(parts, dim)``, without a copy where they are neighbours in one storage."""
    first = parts[0]
    offset = first.storage_offset()
    base = first.untyped_storage().data_ptr()
    for part in parts:
        if (
            part.stride() != first.stride()
            or part.storage_offset() != offset
            or part.untyped_storage().data_ptr() != base
        ):
            return torch.cat(parts, dim)
        offset += part.shape[dim] * part.stride(dim)
    shape = list(first.shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    # A stride smaller than the joined rows would let rows overlap.
    if dim > 0 and first.stride(dim - 1) < shape[dim] * first.stride(dim):
        return torch.cat(parts, dim)
    return first.as_strided(shape, first.stride(), first.storage_offset())


class SplitAlongDim(torch.autograd.Function):
    """``apply(tensor, dim, size_or_sizes, squeeze=False)``: the parts, as views."""

    @staticmethod
    def forward(
        ctx: Any,
        mixed_x_layer: torch.Tensor,
        split_dim: int,
        split_size_or_sections: int | list[int] | tuple[int, ...],
        squeeze: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Parts of a tensor, quantized or not."""
        ctx.split_dim = split_dim % mixed_x_layer.dim()
        ctx.squeeze = squeeze
        sizes: Any = split_size_or_sections
        parts = torch.split(_data_of(mixed_x_layer), sizes, dim=split_dim)
        if squeeze:
            parts = tuple(part.squeeze(split_dim) for part in parts)
        return tuple(_with_data(mixed_x_layer, part) for part in parts)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the whole."""
        assert len(grad_outputs) > 0, "No gradients received for backprop!"
        parts = [_data_of(gradient) for gradient in grad_outputs]
        if ctx.squeeze:
            parts = [part.unsqueeze(ctx.split_dim) for part in parts]
        whole = _with_data(grad_outputs[0], _joined(parts, ctx.split_dim))
        return whole, None, None, None
