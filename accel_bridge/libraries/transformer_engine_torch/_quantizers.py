"""The formats of Transformer Engine's quantizers: their buffers, and what fills them.

Quantizers are Transformer Engine's own objects; a format is found by the name of their class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.float8 import (
    BLOCK,
    FLOAT8_BLOCK_QUANTIZE,
    FLOAT8_CURRENT_QUANTIZE,
    FLOAT8_QUANTIZE,
    MX_BLOCK,
    blocks_of,
    float8_scale,
    mxfp8_quantize,
)
from accel_bridge.libraries.transformer_engine_torch import NotServedError
from accel_bridge.libraries.transformer_engine_torch._tensors import (
    Buffers,
    flat,
    transpose,
    transposed_shape,
)
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE

#: Buffers of formats with a scale for each block.
_BUFFERS: Final = (
    "rowwise_data",
    "rowwise_scale_inv",
    "columnwise_data",
    "columnwise_scale_inv",
)


@cache
def one_copy() -> bool:
    """Whether the device's GEMMs read per-tensor FP8 in both directions from one copy."""
    utils = import_module("transformer_engine.pytorch.utils")
    return bool(utils.is_non_tn_fp8_gemm_supported())


def writing(*places: torch.Tensor) -> AbstractContextManager[None]:
    """Within it, tensors of the inference mode can be written to.

    The compiled extension writes through pointers, which autograd does not see.
    """
    if any(place.is_inference() for place in places):
        return torch.inference_mode()
    return nullcontext()


def update(place: torch.Tensor, new: torch.Tensor, noop: torch.Tensor | None = None) -> None:
    """Overwrite ``place`` unless ``noop`` is 1; nothing is read back from the device."""
    new = new.view(place.dtype).view(place.shape)
    if noop is not None:
        new = torch.where(noop.reshape(()) == 1, place, new)
    with writing(place):
        place.copy_(new)


def largest_magnitude(x: torch.Tensor) -> torch.Tensor:
    """float32, no dimensions; 0 for an empty tensor."""
    if not x.numel():
        return torch.zeros((), dtype=torch.float32, device=x.device)
    low, high = torch.aminmax(x.detach())
    return torch.maximum(-low, high).float()


def _new(
    shape: Sequence[int],
    dtype: torch.dtype = torch.uint8,
    *,
    device: torch.device,
    pin_memory: bool,
) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device=device, pin_memory=pin_memory)


def _ceil(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class Format(ABC):
    """A format of quantized tensors.

    :ivar tensor: name of the class of its tensors.
    """

    tensor: str

    @abstractmethod
    def empty(
        self, quantizer: Any, shape: Sequence[int], device: torch.device, pin_memory: bool = False
    ) -> Buffers:
        """Uninitialized buffers of a tensor of this shape."""

    @abstractmethod
    def quantize(
        self, quantizer: Any, x: torch.Tensor, noop: torch.Tensor | None = None
    ) -> Buffers:
        """Buffers with the numbers of ``x``, which is contiguous and not empty.

        Numbers are no view (``_base``): Megatron's FSDP moves them into memory of its own.

        :param noop: 1: what the quantizer itself keeps stays as it is.
        """


class PerTensor(Format):
    """One scale for a tensor."""

    tensor = "Float8Tensor"

    def empty(
        self, quantizer: Any, shape: Sequence[int], device: torch.device, pin_memory: bool = False
    ) -> Buffers:
        single = one_copy()
        new = partial(_new, device=device, pin_memory=pin_memory)
        rowwise = quantizer.rowwise_usage or single
        columnwise = quantizer.columnwise_usage and not single
        return {
            "data": new(shape) if rowwise else None,
            "data_transpose": new(transposed_shape(tuple(shape))) if columnwise else None,
            "fp8_scale_inv": new((1,), torch.float32),
        }

    def quantize(
        self, quantizer: Any, x: torch.Tensor, noop: torch.Tensor | None = None
    ) -> Buffers:
        single = one_copy()
        transposed = None
        if quantizer.columnwise_usage and not single:
            if not quantizer.rowwise_usage:
                # As in the compiled extension, whose kernel writes both or the rowwise data.
                raise NotImplementedError(
                    "Columnwise-only per-tensor FP8 quantization is not implemented"
                )
            dtype = TORCH_DTYPE[quantizer.dtype]
            transposed = torch.empty(transposed_shape(x.shape), dtype=dtype, device=x.device)
        numbers, scale_inv = self.numbers(quantizer, x, transposed, noop)
        return {
            "data": numbers.view(torch.uint8) if quantizer.rowwise_usage or single else None,
            "data_transpose": None if transposed is None else transposed.view(torch.uint8),
            "fp8_scale_inv": scale_inv,
        }

    @abstractmethod
    def numbers(
        self,
        quantizer: Any,
        x: torch.Tensor,
        transposed: torch.Tensor | None,
        noop: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """FP8 numbers in the shape of ``x``, their transpose in place, and ``scale_inv`` [1]."""


class _Delayed(PerTensor):
    """The scale comes from the largest magnitudes of former steps."""

    def numbers(
        self,
        quantizer: Any,
        x: torch.Tensor,
        transposed: torch.Tensor | None,
        noop: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.empty(1, dtype=torch.float32, device=x.device)
        numbers = kernel(FLOAT8_QUANTIZE)(
            x,
            quantizer.scale,
            dtype=TORCH_DTYPE[quantizer.dtype],
            amax=found,
            transposed=transposed,
        )
        amax = quantizer.amax
        if amax is not None and amax.numel():
            found = found.view(amax.shape)
            if noop is None:
                with writing(amax):
                    torch.maximum(amax, found, out=amax)
            else:
                update(amax, torch.maximum(amax, found), noop)
        return numbers, quantizer.scale.reciprocal().reshape(1)


class _Current(PerTensor):
    """The scale comes from the tensor's own largest magnitude."""

    def numbers(
        self,
        quantizer: Any,
        x: torch.Tensor,
        transposed: torch.Tensor | None,
        noop: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = TORCH_DTYPE[quantizer.dtype]
        rule: dict[str, Any] = {
            "power_of_2": bool(quantizer.force_pow_2_scales),
            "epsilon": float(quantizer.amax_epsilon),
        }
        if not quantizer.with_amax_reduction:
            amax, scale = torch.empty(2, dtype=torch.float32, device=x.device).unbind()
            return kernel(FLOAT8_CURRENT_QUANTIZE)(
                x, dtype=dtype, amax=amax, scale=scale, transposed=transposed, **rule
            )
        amax = largest_magnitude(x)
        group = quantizer._canonicalized_amax_reduction_group()
        dist.all_reduce(amax, dist.ReduceOp.MAX, group=group)
        scale = float8_scale(amax, dtype, **rule)
        numbers = kernel(FLOAT8_QUANTIZE)(x, scale, dtype=dtype, transposed=transposed)
        return numbers, scale.reciprocal().reshape(1)


class _Blocks(Format):
    """A scale for each 1 x 128 or 128 x 128 numbers."""

    tensor = "Float8BlockwiseQTensor"

    def empty(
        self, quantizer: Any, shape: Sequence[int], device: torch.device, pin_memory: bool = False
    ) -> Buffers:
        made: Buffers = dict.fromkeys(_BUFFERS)
        k = shape[-1] if len(shape) else 1
        m = torch.Size(shape[:-1]).numel()
        square = quantizer.block_scaling_dim == 2
        new = partial(_new, device=device, pin_memory=pin_memory)
        for way, rows, last, data in (
            ("rowwise", m, k, tuple(shape)),
            ("columnwise", k, m, transposed_shape(tuple(shape))),
        ):
            if getattr(quantizer, f"{way}_usage"):
                sizes = (blocks_of(rows), blocks_of(last)) if square else (blocks_of(last), rows)
                padded_sizes = (sizes[0], _ceil(sizes[1], 4))
                made[f"{way}_data"] = new(data)
                made[f"{way}_scale_inv"] = new(padded_sizes, torch.float32)
        return made

    def quantize(
        self, quantizer: Any, x: torch.Tensor, noop: torch.Tensor | None = None
    ) -> Buffers:
        made: Buffers = dict.fromkeys(_BUFFERS)
        square = quantizer.block_scaling_dim == 2
        run, matrix = kernel(FLOAT8_BLOCK_QUANTIZE), flat(x)
        options: dict[str, Any] = {
            "dtype": TORCH_DTYPE[quantizer.dtype],
            "rows": BLOCK if square else 1,
            "power_of_2": bool(quantizer.force_pow_2_scales),
            "epsilon": float(quantizer.amax_epsilon),
        }
        if quantizer.rowwise_usage or square:
            numbers, scale_inv = run(matrix, **options)
            numbers = numbers.view(torch.uint8)
        if quantizer.rowwise_usage:
            made["rowwise_data"] = numbers.view(x.shape).data
            made["rowwise_scale_inv"] = padded(scale_inv if square else scale_inv.t(), 4)
        if quantizer.columnwise_usage:
            if square:
                numbers = transpose(numbers)
            else:
                numbers, scale_inv = run(matrix.t(), **options)
                numbers = numbers.view(torch.uint8)
            made["columnwise_data"] = numbers.view(transposed_shape(x.shape)).data
            made["columnwise_scale_inv"] = padded(scale_inv.t(), 4)
        return made


class _MX(Format):
    """An E8M0 factor for each 32 numbers."""

    tensor = "MXFP8Tensor"

    def empty(
        self, quantizer: Any, shape: Sequence[int], device: torch.device, pin_memory: bool = False
    ) -> Buffers:
        m, k = torch.Size(shape[:-1]).numel(), shape[-1] if len(shape) else 1
        _check_mx(m, k)
        new = partial(_new, device=device, pin_memory=pin_memory)
        made: Buffers = dict.fromkeys(_BUFFERS)
        for way, sizes in (
            ("rowwise", (_ceil(m, 128), _ceil(k // MX_BLOCK, 4))),
            ("columnwise", (_ceil(m // MX_BLOCK, 4), _ceil(k, 128))),
        ):
            if getattr(quantizer, f"{way}_usage"):
                made[f"{way}_data"] = new(shape)
                made[f"{way}_scale_inv"] = new(sizes)
        return made

    def quantize(
        self, quantizer: Any, x: torch.Tensor, noop: torch.Tensor | None = None
    ) -> Buffers:
        matrix, dtype = flat(x), TORCH_DTYPE[quantizer.dtype]
        _check_mx(*matrix.shape)
        rows = MX_BLOCK if getattr(quantizer, "with_2d_quantization", False) else 1
        made: Buffers = dict.fromkeys(_BUFFERS)
        if quantizer.rowwise_usage:
            numbers, scale_inv = mxfp8_quantize(matrix, dtype=dtype, rows=rows)
            made["rowwise_data"] = numbers.view(torch.uint8).view(x.shape).data
            made["rowwise_scale_inv"] = padded(scale_inv, 4, 128)
        if quantizer.columnwise_usage:
            numbers, scale_inv = mxfp8_quantize(matrix.t(), dtype=dtype, rows=rows)
            made["columnwise_data"] = transpose(numbers.view(torch.uint8)).view(x.shape).data
            made["columnwise_scale_inv"] = padded(scale_inv.t(), 128, 4)
        return made


def _check_mx(m: int, k: int) -> None:
    if m % MX_BLOCK or k % MX_BLOCK:
        raise RuntimeError(f"MXFP8 requires tensor dims that are divisible by 32, not [{m}, {k}]")


def padded(scale_inv: torch.Tensor, columns: int, rows: int = 1) -> torch.Tensor:
    """``scale_inv`` [m, n] with zeros up to multiples of ``rows`` and ``columns``, contiguous."""
    m, n = scale_inv.shape
    if m % rows or n % columns:
        return F.pad(scale_inv, (0, -n % columns, 0, -m % rows))
    return scale_inv.contiguous()


_FORMATS: dict[str, Format] = {
    "Float8Quantizer": _Delayed(),
    "Float8CurrentScalingQuantizer": _Current(),
    "Float8BlockQuantizer": _Blocks(),
    "MXFP8Quantizer": _MX(),
}


class Found(NamedTuple):
    """A quantizer's format, and Transformer Engine's class that it was found by."""

    format: Format
    home: type


@cache
def _found(cls: type) -> Found | None:
    for base in cls.__mro__:
        if base.__name__ in _FORMATS:
            return Found(_FORMATS[base.__name__], base)
    return None


def format_of(quantizer: Any) -> Found:
    """The format of ``quantizer``'s tensors.

    :raises NotServedError: none of the four.
    """
    found = _found(type(quantizer))  # type: ignore[arg-type]
    if found is None:
        raise NotServedError(
            f"{type(quantizer).__name__}: its format is not served by accel_bridge",
            evidence=f"served are the formats of {', '.join(_FORMATS)}",
            next="choose another FP8 recipe (--fp8-recipe delayed, tensorwise, blockwise or "
            "mxfp8), or run where NVIDIA's compiled extension is installed",
        )
    return found
