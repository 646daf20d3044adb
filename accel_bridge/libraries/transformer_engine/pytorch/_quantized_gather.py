"""Gathering quantized tensors along the first dimension."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .quantized_tensor import QuantizedTensorStorage
from .tensor.float8_tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
)
from .tensor.storage.float8_tensor_storage import Float8TensorStorage


def travels_as_bytes(quantizer: Any) -> bool:
    """Whether ranks' parts have one scale in common, so that their FP8 data can be joined."""
    return isinstance(quantizer, (Float8Quantizer, Float8CurrentScalingQuantizer))


def gather_quantized(
    inp: Any, group: dist.ProcessGroup | None, size: int, async_op: bool, quantizer: Any
) -> tuple[Any, dist.Work | None]:
    """Every rank's inp [s, ...], quantized: [p s, ...]; the handle of bytes under way, or None.

    Data with one scale for all ranks travels as bytes. Other kinds travel in high precision and
    are quantized afterwards: their blocks then are those of the whole tensor.

    :param inp: plain or quantized.
    :param quantizer: for the result; None: as ``inp`` is.
    """
    if size == 1:
        return (inp if isinstance(inp, QuantizedTensorStorage) else quantizer(inp)), None
    if isinstance(inp, Float8TensorStorage) or travels_as_bytes(quantizer):
        return _gather_bytes(inp, group, size, async_op, quantizer)
    if isinstance(inp, QuantizedTensorStorage):
        quantizer = inp._get_quantizer() if quantizer is None else quantizer
        inp = inp.dequantize()
    whole = inp.new_empty((inp.shape[0] * size, *inp.shape[1:]))
    dist.all_gather_into_tensor(whole, inp.contiguous(), group=group)
    return quantizer(whole), None


def _gather_bytes(
    inp: Any, group: dist.ProcessGroup | None, size: int, async_op: bool, quantizer: Any
) -> tuple[Any, dist.Work | None]:
    if quantizer is None:
        quantizer = inp._get_quantizer()
    usages = quantizer.get_usages()
    quantizer.set_usage(rowwise=True, columnwise=False)
    if not isinstance(inp, Float8TensorStorage):
        inp = quantizer(inp)
    data = inp._data
    shape = (data.shape[0] * size, *data.shape[1:])
    dtype = inp.dtype if isinstance(inp, Float8Tensor) else torch.float32
    whole = quantizer.make_empty(shape, dtype=dtype, device=data.device)
    quantizer.set_usage(**usages)
    # The ranks have agreed on the scale: it is theirs, too.
    whole._scale_inv = inp._scale_inv
    handle = dist.all_gather_into_tensor(
        whole._data, data.contiguous(), group=group, async_op=async_op
    )
    if usages["columnwise"] and whole._data.element_size() == 1:
        if handle is not None:
            handle.wait()
            handle = None
        whole.update_usage(columnwise_usage=True)
    return whole, handle
