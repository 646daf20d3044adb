"""Quantizing, dequantizing, transposing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_bridge.kernels import FLOAT8_CURRENT_QUANTIZE, FLOAT8_QUANTIZE, active, float8_scale

from ..constants import TE_DType_To_Torch
from ..utils import is_non_tn_fp8_gemm_supported
from ._enums import DType


def compute_amax(input: torch.Tensor, amax: torch.Tensor) -> None:
    """The largest magnitude of ``input`` into ``amax`` [1], float32."""
    if input.numel():
        low, high = input.aminmax()
        amax.copy_(torch.maximum(-low, high).reshape(amax.shape))
    else:
        amax.zero_()


def fp8_transpose(
    input: torch.Tensor, dtype: DType, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[..., columns] -> [columns, ...], contiguous, uint8; into ``out`` if it is there."""
    last = input.dim() - 1
    transposed = input.permute(last, *range(last)) if input.dim() > 1 else input
    if out is None or out.shape != transposed.shape:
        return transposed.contiguous() if input.dim() > 1 else transposed.clone()
    return out.copy_(transposed)


def dequantize(input: Any, otype: DType) -> torch.Tensor:
    """A storage's numbers in another dtype, the product with the scale in float32."""
    dtype = TE_DType_To_Torch[otype]
    numbers = input._data.view(TE_DType_To_Torch[input._fp8_dtype])
    if not numbers.numel():
        return torch.empty(numbers.shape, dtype=dtype, device=numbers.device)
    wide: torch.Tensor = numbers.float() * input._scale_inv.reshape(())
    return wide.to(dtype)


def _is_noop(noop: torch.Tensor | None) -> torch.Tensor | None:
    """The flag as a truth value on the device, or None without a flag."""
    return None if noop is None else noop.reshape(()) == 1.0


def _store(place: torch.Tensor, new: torch.Tensor, noop: torch.Tensor | None) -> None:
    """Overwrite ``place`` unless ``noop`` holds; nothing is read back from the device."""
    if noop is not None:
        new = torch.where(noop, place, new.view(place.dtype).view(place.shape))
    place.copy_(new.view(place.dtype).view(place.shape))


def _numbers(
    input: torch.Tensor, quantizer: Any, amax: torch.Tensor | None, transposed: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(FP8 numbers, what dequantizes them [1]) with the quantizer's scale or the tensor's own.

    :param amax: takes the largest magnitude, for delayed scaling.
    :param transposed: takes the transpose.
    """
    dtype = TE_DType_To_Torch[quantizer.dtype]
    options: dict[str, Any] = {"dtype": dtype, "transposed": transposed}
    if not hasattr(quantizer, "force_pow_2_scales"):
        numbers = active.kernel(FLOAT8_QUANTIZE)(input, quantizer.scale, amax=amax, **options)
        return numbers, quantizer.scale.reciprocal().reshape(1)
    scaling: dict[str, Any] = {
        "power_of_2": bool(quantizer.force_pow_2_scales),
        "epsilon": float(quantizer.amax_epsilon),
    }
    if not (quantizer.use_existing_amax or quantizer.with_amax_reduction):
        return active.kernel(FLOAT8_CURRENT_QUANTIZE)(
            input, amax=quantizer.amax, scale=quantizer.scale, **options, **scaling
        )
    if not quantizer.use_existing_amax:
        compute_amax(input, quantizer.amax)
    if quantizer.with_amax_reduction:
        torch.distributed.all_reduce(
            quantizer.amax,
            op=torch.distributed.ReduceOp.MAX,
            group=quantizer._canonicalized_amax_reduction_group(),
        )
    scale = float8_scale(quantizer.amax, dtype, **scaling)
    quantizer.scale.copy_(scale.reshape(quantizer.scale.shape))
    numbers = active.kernel(FLOAT8_QUANTIZE)(input, scale, **options)
    return numbers, scale.reciprocal().reshape(1)


def per_tensor(
    input: torch.Tensor, quantizer: Any, output: Any, noop: torch.Tensor | None
) -> dict[str, Any] | None:
    """Quantize with one scale: the parts of a new tensor, or None after ``output`` was written."""
    one_copy = is_non_tn_fp8_gemm_supported()
    rowwise = quantizer.rowwise_usage or one_copy
    columnwise = quantizer.columnwise_usage and not one_copy
    delayed = not hasattr(quantizer, "force_pow_2_scales")
    has_amax = delayed and quantizer.amax is not None and quantizer.amax.numel() > 0
    transposed = None
    if columnwise:
        shape = (*input.shape[-1:], *input.shape[:-1])
        transposed = torch.empty(
            shape, dtype=TE_DType_To_Torch[quantizer.dtype], device=input.device
        )
    amax = quantizer.amax if has_amax and noop is None else None
    numbers, scale_inv = _numbers(input, quantizer, amax, transposed)
    numbers = numbers.view(torch.uint8)
    transposed = None if transposed is None else transposed.view(torch.uint8)
    if output is None:
        return {
            "data": numbers if rowwise else None,
            "fp8_scale_inv": scale_inv,
            "fp8_dtype": quantizer.dtype,
            "data_transpose": transposed,
            "quantizer": quantizer,
        }
    if has_amax and noop is not None:
        fresh = torch.empty_like(quantizer.amax)
        compute_amax(input, fresh)
        _store(quantizer.amax, fresh, noop)
    if rowwise:
        if output._data is None:
            output._data = torch.empty_like(numbers)
        _store(output._data, numbers, noop)
    else:
        output._data = None
    if transposed is not None:
        if output._transpose is None:
            output._transpose = transposed
        else:
            _store(output._transpose, transposed, noop)
    else:
        output._transpose = None
    output._transpose_invalid = not columnwise
    output._fp8_dtype = quantizer.dtype
    _store(output._scale_inv, scale_inv, noop)
    return None


def quantize(
    tensor: torch.Tensor,
    quantizer: Any,
    output: Any = None,
    noop: torch.Tensor | None = None,
) -> Any:
    """A quantized copy of ``tensor`` as ``quantizer`` says, or ``output`` overwritten.

    :param tensor: float16, bfloat16 or float32.
    :param output: what is overwritten.
    :param noop: [1], float32: 1 leaves ``output`` as it is.
    :raises TypeError: a quantizer of no known kind.
    """
    with torch.no_grad():
        source = tensor.dequantize() if hasattr(tensor, "_quantizer") else tensor.detach()
        if hasattr(quantizer, "_quantized"):
            return quantizer._quantized(source, output, _is_noop(noop))
    if hasattr(quantizer, "quantize_impl") and output is None:
        return quantizer.quantize_impl(tensor)
    raise TypeError(f"cannot quantize with a {type(quantizer).__name__}")


def multi_tensor_quantize(tensor_list: Sequence[torch.Tensor], quantizer_list: Any) -> list[Any]:
    """Each tensor by its quantizer."""
    pairs = zip(tensor_list, quantizer_list, strict=True)
    return [quantize(tensor, quantizer) for tensor, quantizer in pairs]


def split_quantize(
    tensor: torch.Tensor,
    split_sections: Sequence[int],
    quantizer_list: Sequence[Any],
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    """Row blocks of a tensor, each by its quantizer."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    return multi_tensor_quantize(rows.split(list(split_sections)), quantizer_list)


def bgrad_quantize(input: torch.Tensor, quantizer: Any) -> tuple[torch.Tensor, Any]:
    """(the sum over rows, a quantized copy); the sum in the input's dtype."""
    total = input.reshape(-1, input.shape[-1]).sum(0)
    return total, input if quantizer is None else quantizer(input)
