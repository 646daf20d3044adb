"""Quantizing and dequantizing: the formats of Transformer Engine's quantizers, and recipes' scales.

Quantizers are Transformer Engine's own objects; a format is found by the name of their class.

Source: csrc/extensions/cast.cpp, bias.cpp, transpose.cpp, common/recipe/delayed_scaling.cu,
fp8_block_scaling.cu, mxfp8_scaling.cu.
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
    mx_scale,
    mxfp8_quantize,
    rounded,
)
from accel_bridge.libraries.transformer_engine_torch import NotServedError
from accel_bridge.libraries.transformer_engine_torch._tensors import (
    ATTRIBUTES,
    Buffers,
    construct,
    dequantized,
    flat,
    is_quantized,
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
            return kernel(FLOAT8_CURRENT_QUANTIZE)(x, dtype=dtype, transposed=transposed, **rule)
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
    transposed = transpose(input)
    return transposed if out is None or out.shape != transposed.shape else out.copy_(transposed)


def swap_first_dims(tensor: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """[a, b, ..] -> [b, a, ..], contiguous; into ``out`` if it is given."""
    transposed = tensor.transpose(0, 1)
    return transposed.contiguous() if out is None else out.copy_(transposed)


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


@torch.no_grad()
def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: torch.Tensor,
    amax_histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    amax_compute_algo: str,
    fp8_dtype: int,
    margin: float,
) -> None:
    """Enter the reduced magnitudes into every module's history, and compute its next scales.

    :param amax_reduction_buffer: the newest magnitudes of all modules, one after the other.
    :param amax_histories: of each module [length, n]; moved one step on, in place.
    :param scales: of each module [n]; changed in place.
    :param amax_compute_algo: ``max`` or ``most_recent``.
    :param fp8_dtype: a ``DType``.
    :param margin: scales are divided by two to this power.
    :raises ValueError: another algorithm.
    """
    if amax_compute_algo not in ("max", "most_recent"):
        raise ValueError(f"Unsupported amax compute algorithm ({amax_compute_algo})")
    largest = torch.finfo(TORCH_DTYPE[fp8_dtype]).max * 2.0**-margin
    with writing(*amax_histories, *scales):
        _update(amax_reduction_buffer, amax_histories, scales, amax_compute_algo == "max", largest)


def _update(
    newest: torch.Tensor,
    histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    of_history: bool,
    largest: float,
) -> None:
    # One set of operations for all modules: their histories are of one recipe, and so as long.
    sizes = [len(scale) for scale in scales]
    history, old = torch.cat(list(histories), 1), torch.cat(list(scales))
    last = torch.where(newest != 0, newest, history[0])
    # What was not quantized since the last update (a weight in later microbatches) stays.
    updated = last != 0
    rolled = torch.cat((history[1:], last.unsqueeze(0)))
    # The largest of the others where one is NaN, as fmaxf.
    amax = rolled.nan_to_num(nan=0.0, posinf=torch.inf).amax(0) if of_history else last
    rolled[0].zero_()
    rolled = torch.where(updated, rolled, history)
    torch._foreach_copy_(list(histories), list(rolled.split(sizes, 1)))
    scale = (torch.full_like(amax, largest) / amax).clamp(max=torch.finfo(torch.float32).max)
    scale = torch.where(updated & (amax > 0) & torch.isfinite(amax), scale, old)
    torch._foreach_copy_(list(scales), list(scale.split(sizes)))


def _places(
    start_offset: int, count: int, w: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each element of a flat part of a weight with ``w`` columns."""
    place = torch.arange(start_offset, start_offset + count, device=device)
    return place // w, place % w


def _largest(
    magnitudes: torch.Tensor, row: torch.Tensor, column: torch.Tensor, amax: torch.Tensor
) -> None:
    """Set ``amax`` [rows, columns] to the largest magnitudes of those with a place, else to 0."""
    found = torch.zeros(amax.shape, dtype=torch.float32, device=amax.device).view(-1)
    found.scatter_reduce_(0, row * amax.shape[1] + column, magnitudes, "amax")
    amax.copy_(found.view(amax.shape))


@torch.no_grad()
def fp8_block_scaling_compute_partial_amax(
    tensor: torch.Tensor, amax: torch.Tensor, h: int, w: int, start_offset: int, block_len: int
) -> None:
    """Largest magnitudes of the blocks that a part of a weight touches, 0 for others.

    :param tensor: the part, float32 or bfloat16.
    :param amax: [h / block_len, w / block_len or wider], float32; overwritten.
    :param h: rows of the weight.
    :param w: its columns.
    :param start_offset: where the part begins in the flat weight.
    :param block_len: rows and columns of a block.
    """
    flat = tensor.detach().reshape(-1).abs().float()
    row, column = _places(start_offset, len(flat), w, flat.device)
    _largest(flat, row // block_len, column // block_len, amax)


@torch.no_grad()
def fp8_block_scaling_partial_cast(
    inp: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    h: int,
    w: int,
    start_offset: int,
    block_len: int,
    out_dtype: int,
) -> None:
    """Quantize a part of a weight with its blocks' scales.

    :param inp: the part, float32 or bfloat16.
    :param out: uint8, as long: receives the FP8 numbers.
    :param scale: [h / block_len, w / block_len or wider], float32.
    :param h: rows of the weight.
    :param w: its columns.
    :param start_offset: where the part begins in the flat weight.
    :param block_len: rows and columns of a block.
    :param out_dtype: a ``DType``.
    """
    flat = inp.detach().reshape(-1).float()
    row, column = _places(start_offset, len(flat), w, flat.device)
    each = scale[row // block_len, column // block_len]
    out.view(-1).copy_(rounded(flat * each, TORCH_DTYPE[out_dtype]).view(out.dtype))


@torch.no_grad()
def mxfp8_scaling_compute_partial_amax(
    input: torch.Tensor,
    amax_rowwise: torch.Tensor,
    amax_colwise: torch.Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Largest magnitudes of the blocks of 32, along rows and columns, that a part touches.

    :param input: [n], the part.
    :param amax_rowwise: [rows, cols / 32] or larger, in the input's dtype; overwritten.
    :param amax_colwise: [rows / 32, cols] or larger, likewise.
    :param rows: rows of the weight.
    :param cols: its columns.
    :param start_offset: where the part begins in the flat weight.
    """
    flat = input.detach().reshape(-1).abs().float()
    row, column = _places(start_offset, len(flat), cols, flat.device)
    _largest(flat, row, column // MX_BLOCK, amax_rowwise)
    _largest(flat, row // MX_BLOCK, column, amax_colwise)


@torch.no_grad()
def mxfp8_scaling_partial_cast(
    input: torch.Tensor,
    output_rowwise: torch.Tensor,
    output_colwise: torch.Tensor,
    scale_inv_rowwise: torch.Tensor,
    scale_inv_colwise: torch.Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Quantize a part of a weight to E4M3 with scale_inv of both directions.

    :param input: [n], the part.
    :param output_rowwise: [n], uint8: receives the numbers scaled along rows.
    :param output_colwise: [n], uint8: those scaled along columns.
    :param scale_inv_rowwise: [rows, cols / 32] or larger, E8M0 as uint8.
    :param scale_inv_colwise: [rows / 32, cols] or larger, likewise.
    :param rows: rows of the weight.
    :param cols: its columns.
    :param start_offset: where the part begins in the flat weight.
    """
    flat = input.detach().reshape(-1).float()
    row, column = _places(start_offset, len(flat), cols, flat.device)
    for each, out in (
        (scale_inv_rowwise[row, column // MX_BLOCK], output_rowwise),
        (scale_inv_colwise[row // MX_BLOCK, column], output_colwise),
    ):
        numbers = rounded(flat * mx_scale(each), torch.float8_e4m3fn)
        out.view(-1).copy_(numbers.view(out.dtype))
