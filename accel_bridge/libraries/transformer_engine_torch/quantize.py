"""Quantizing and dequantizing. Source: csrc/extensions/cast.cpp, bias.cpp, transpose.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_bridge.libraries.transformer_engine_torch._quantizers import (
    format_of,
    largest_magnitude,
    update,
)
from accel_bridge.libraries.transformer_engine_torch._tensors import (
    ATTRIBUTES,
    construct,
    dequantized,
    flat,
    is_quantized,
    transpose,
)
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE


def quantize(
    tensor: Any, quantizer: Any, output: Any = None, noop: torch.Tensor | None = None
) -> Any:
    """``tensor`` in the quantizer's format; ``output`` is overwritten if it is given.

    :param tensor: [.., k], float16, bfloat16 or float32.
    :param quantizer: Transformer Engine's; None gives the tensor itself.
    :param output: a quantized tensor; directions that the quantizer does not use are dropped.
    :param noop: [1], float32: 1 leaves ``output`` as it is; not read back from the device.
    :raises NotServedError: a quantizer of another format.
    """
    if is_quantized(tensor):
        tensor = tensor.dequantize()
    if quantizer is None:
        return tensor.contiguous()
    form, home = format_of(quantizer)
    with torch.no_grad():
        x = tensor.detach().contiguous()
        if output is not None:
            _overwrite(output, form.quantize(quantizer, x, noop) if x.numel() else {}, noop)
            return output
        if x.numel():
            buffers = form.quantize(quantizer, x)
        else:
            buffers = form.empty(quantizer, x.shape, x.device)
        return construct(quantizer, home, form.tensor, buffers, tuple(x.shape), x.dtype, x.device)


def _overwrite(output: Any, buffers: Any, noop: torch.Tensor | None) -> None:
    """Write buffers into those that ``output`` has, which others may hold, or set them."""
    for keyword, value in buffers.items():
        name = ATTRIBUTES[keyword]
        held = getattr(output, name)
        if held is None or value is None:
            setattr(output, name, value)
        else:
            update(held, value, noop)
    if "data_transpose" in buffers:
        output._transpose_invalid = buffers["data_transpose"] is None


def create_empty_quantized_tensor(
    quantizer: Any,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    pin_memory: bool = False,
) -> Any:
    """An uninitialized tensor in the quantizer's format."""
    form, home = format_of(quantizer)
    buffers = form.empty(quantizer, shape, torch.device(device), pin_memory)
    # Of the device that "cuda" is redirected to.
    place = next(one.device for one in buffers.values() if one is not None)
    return construct(quantizer, home, form.tensor, buffers, tuple(shape), dtype, place)


def dequantize(input: Any, otype: int) -> torch.Tensor:
    """A quantized tensor's numbers in another dtype, multiplied in float32.

    :param otype: a ``DType``.
    """
    with torch.no_grad():
        return dequantized(input, TORCH_DTYPE[otype])


def bgrad_quantize(input: torch.Tensor, quantizer: Any) -> list[Any]:
    """The sum of the rows of ``input`` [.., n] in its dtype, and a quantized copy."""
    with torch.no_grad():
        return [flat(input).sum(0), quantize(input, quantizer)]


def multi_tensor_quantize(tensor_list: Sequence[Any], quantizer_list: Sequence[Any]) -> list[Any]:
    """Each tensor by its quantizer."""
    return [quantize(one, by) for one, by in zip(tensor_list, quantizer_list, strict=True)]


def split_quantize(
    tensor: torch.Tensor,
    split_sections: Sequence[int],
    quantizer_list: Sequence[Any],
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    """Blocks of rows, each by its quantizer.

    :param tensor: [.., k].
    :param split_sections: numbers of rows, on the host; zeros are allowed.
    :param disable_bulk_allocation: no meaning here.
    """
    return multi_tensor_quantize(flat(tensor).split(list(split_sections)), quantizer_list)


def fp8_transpose(
    input: torch.Tensor, dtype: int, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[.., k] -> [k, ..], uint8; into ``out`` if it is given."""
    turned = transpose(input)
    return turned if out is None or out.shape != turned.shape else out.copy_(turned)


def swap_first_dims(tensor: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """[a, b, ..] -> [b, a, ..], contiguous; into ``out`` if it is given."""
    turned = tensor.transpose(0, 1)
    return turned.contiguous() if out is None else out.copy_(turned)


def compute_amax(input: torch.Tensor, amax: torch.Tensor) -> None:
    """The largest magnitude of ``input`` into ``amax`` [1], float32."""
    update(amax, largest_magnitude(input))


def swizzle_scales_for_gemm_(tensor: Any) -> None:
    """Nothing: the GEMMs here read scales as quantizing leaves them."""


def multi_tensor_swizzle_scales_for_gemm_(
    tensors: Sequence[Any], rowwise_usage: bool, columnwise_usage: bool
) -> None:
    """Nothing, as :func:`swizzle_scales_for_gemm_`."""


multi_tensor_swizzle_scales_for_gemm_unchecked_ = multi_tensor_swizzle_scales_for_gemm_
