"""Transformer Engine's quantized tensors: made from buffers, read as operands of a GEMM.

Their layouts, for logical [.., k] with m rows:

========== ===================== ========================= ================================
format     rowwise data          columnwise data           scale_inv, rowwise; columnwise
========== ===================== ========================= ================================
per tensor [.., k]               [k, ..]                   [1], shared
1D blocks  [.., k]               [k, ..]                   [k/128, m4]; [m/128, k4]
2D blocks  [.., k]               [k, ..]                   [m/128, (k/128)4]; [k/128, (m/128)4]
MXFP8      [.., k]               [.., k]                   [m128, (k/32)4]; [(m/32)4, k128], E8M0
========== ===================== ========================= ================================

Quotients are rounded up; x4 is x rounded up to a multiple of 4. Source: csrc/quantizer.cpp.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.kernels.float8 import MX_BLOCK, blocks_of, float8_dequantize
from accel_bridge.libraries.transformer_engine_torch.enums import (
    TORCH_DTYPE,
    Float8BlockScaleTensorFormat,
)

Buffers = dict[str, torch.Tensor | None]

#: Keyword of a tensor class's constructor -> the attribute that holds it.
ATTRIBUTES: Final[Mapping[str, str]] = {
    "data": "_data",
    "data_transpose": "_transpose",
    "fp8_scale_inv": "_scale_inv",
    "rowwise_data": "_rowwise_data",
    "rowwise_scale_inv": "_rowwise_scale_inv",
    "columnwise_data": "_columnwise_data",
    "columnwise_scale_inv": "_columnwise_scale_inv",
}


class Operand(NamedTuple):
    """One side of a GEMM.

    :param numbers: [m, k], FP8, summed along k.
    :param scale_inv: as ``float8_dequantize``.
    """

    numbers: torch.Tensor
    scale_inv: torch.Tensor


def flat(x: torch.Tensor) -> torch.Tensor:
    """[.., k] as [m, k]; a scalar as [1, 1]."""
    if x.dim() == 2:
        return x
    return x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)


def transposed_shape(shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
    """[.., k] -> [k, ..]."""
    return (*shape[-1:], *shape[:-1])


def transpose(data: torch.Tensor) -> torch.Tensor:
    """[.., k] -> [k, ..], contiguous: the transpose of [m, k]."""
    if data.dim() == 2:
        return data.t().contiguous()
    return data.movedim(-1, 0).contiguous() if data.dim() else data.clone()


@cache
def _keywords(cls: type) -> frozenset[str]:
    """Names that a constructor of the class or of its bases takes."""
    makers = (vars(base).get("__new__") for base in cls.__mro__)
    functions = (getattr(maker, "__func__", maker) for maker in makers)
    return frozenset(
        name
        for function in functions
        if inspect.isfunction(function)
        for name in inspect.signature(function).parameters
    )


@cache
def _class_of(quantizer: type, name: str, internal: bool) -> type[Any]:
    """The class ``name`` beside a quantizer's, or its bare storage (``Base`` until 2.8)."""
    found = vars(sys.modules[quantizer.__module__])
    names = (f"{name}Storage", f"{name}Base") if internal else (name,)
    return next(found[one] for one in names if one in found)  # type: ignore[no-any-return]


def construct(
    quantizer: Any,
    home: type,
    name: str,
    buffers: Buffers,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    """A tensor of Transformer Engine's class ``name``, or with ``internal`` its bare storage.

    :param home: the quantizer's class in whose module the tensor's is.
    :param buffers: by the constructor's keywords.
    :param shape: logical.
    :param dtype: nominal.
    """
    cls = _class_of(home, name, bool(quantizer.internal))
    takes = _keywords(cls)  # type: ignore[arg-type]
    made: dict[str, Any] = {**buffers, "fp8_dtype": quantizer.dtype, "quantizer": quantizer}
    if quantizer.internal:
        made["fake_dtype"] = dtype
    else:
        made |= {"shape": shape, "dtype": dtype}
        if "device" in takes:
            made["device"] = device
    if "is_2D_scaled" in takes:
        made["is_2D_scaled"] = quantizer.block_scaling_dim == 2
    if "data_format" in takes:
        made["data_format"] = Float8BlockScaleTensorFormat.GEMM_READY
    if "with_gemm_swizzled_scales" in takes:
        made["with_gemm_swizzled_scales"] = False
    return cls(**made)


def is_quantized(x: Any) -> bool:
    """Whether ``x`` is one of Transformer Engine's FP8 tensors or storages."""
    return type(x) is not torch.Tensor and hasattr(x, "_fp8_dtype")


def _missing(x: Any, columnwise: bool) -> RuntimeError:
    way = "columnwise" if columnwise else "rowwise"
    return RuntimeError(f"{type(x).__name__} has no {way} data for this GEMM")


def _per_tensor(x: Any, dtype: torch.dtype, columnwise: bool) -> Operand:
    has_transpose = x._transpose is not None and not x._transpose_invalid
    if columnwise:
        data = x._transpose.flatten(1) if has_transpose else transpose(flat(x._data))
    elif x._data is not None:
        data = flat(x._data)
    elif has_transpose:
        data = transpose(x._transpose.flatten(1))
    else:
        raise _missing(x, columnwise)
    return Operand(data.view(dtype), x._scale_inv)


def _blocks(x: Any, dtype: torch.dtype, columnwise: bool) -> Operand:
    data = x._columnwise_data if columnwise else x._rowwise_data
    scale_inv = x._columnwise_scale_inv if columnwise else x._rowwise_scale_inv
    if data is None:
        raise _missing(x, columnwise)
    data = (data.flatten(1) if data.dim() > 1 else flat(data)) if columnwise else flat(data)
    m, k = data.shape
    each = scale_inv[:, : blocks_of(k)] if x._is_2D_scaled else scale_inv.t()[:m]
    return Operand(data.view(dtype), each)


def _mx(x: Any, dtype: torch.dtype, columnwise: bool) -> Operand:
    data = x._columnwise_data if columnwise else x._rowwise_data
    if data is None:
        raise _missing(x, columnwise)
    data, e8m0 = flat(data).view(dtype), torch.float8_e8m0fnu
    m, k = data.shape
    if columnwise:
        each = x._columnwise_scale_inv[: m // MX_BLOCK, :k]
        return Operand(data.t(), each.view(e8m0).t())
    return Operand(data, x._rowwise_scale_inv[:m, : k // MX_BLOCK].view(e8m0))


def operand(x: Any, *, columnwise: bool) -> Operand:
    """A quantized tensor [.., k] as [m, k], or ``columnwise`` as its transpose [k, m].

    :raises RuntimeError: it has no data in that direction.
    """
    dtype = TORCH_DTYPE[x._fp8_dtype]
    if hasattr(x, "_scale_inv"):
        return _per_tensor(x, dtype, columnwise)
    return (_blocks if hasattr(x, "_is_2D_scaled") else _mx)(x, dtype, columnwise)


def dequantized(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """[.., k] in ``dtype``, from the rowwise data if there is any; computed in float32."""
    rowwise = x._data if hasattr(x, "_scale_inv") else x._rowwise_data
    numbers, scale_inv = operand(x, columnwise=rowwise is None)
    wide = float8_dequantize(numbers, scale_inv)
    return (wide.t() if rowwise is None else wide).to(dtype).reshape(tuple(x.size()))


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Blocks of rows as one matrix if each follows the one before in one storage, else None."""
    first = parts[0]
    offset, storage = first.storage_offset(), first.untyped_storage()._cdata
    for part in parts:
        if not part.numel():
            continue
        neighbours = part.storage_offset() == offset and part.is_contiguous()
        if not neighbours or part.untyped_storage()._cdata != storage:
            return None
        offset += part.numel()
    rows = sum(part.shape[0] for part in parts)
    return first.as_strided((rows, first.shape[-1]), (first.shape[-1], 1))


#: C functions: there may be hundreds of experts.
_ADDRESS: Final = torch.Tensor.data_ptr
_IS_CONTIGUOUS: Final = torch.Tensor.is_contiguous
_SHAPE: Final = attrgetter("shape")


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Matrices as one tensor [e, ...] if they lie at equal distances in one storage, else None."""
    first = tensors[0].detach()
    storage, size, shape = first.untyped_storage(), first.nbytes, first.shape
    starts, begin = _addresses(tensors, first, storage)
    if not starts:
        return None
    step = size if len(starts) == 1 else starts[1] - starts[0]
    # A tensor without numbers has no distance.
    if not size or step < size or step % first.element_size():
        return None
    # The addresses alone could be those of several storages.
    inside = begin <= starts[0] and starts[-1] + size <= begin + storage.nbytes()
    if not inside or starts != list(range(starts[0], starts[0] + step * len(starts), step)):
        return None
    if not all(map(_IS_CONTIGUOUS, tensors)) or set(map(_SHAPE, tensors)) != {shape}:
        return None
    step //= first.element_size()
    return first.as_strided((len(starts), *shape), (step, *first.stride()))


def is_capturing(tensor: torch.Tensor) -> bool:
    """Whether a graph is captured, which would keep what the host knows of this call."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def in_one_storage(sums: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]] | None:
    """A flat tensor that holds them all, and where each begins; None if they lie apart."""
    first = sums[0].detach()
    size, storage = first.element_size(), first.untyped_storage()
    starts, begin = _addresses(sums, first, storage)
    if not starts:
        return None
    start = min(starts)
    places = [(one - start) // size for one in starts]
    end = max(map(add, places, map(torch.Tensor.numel, sums)))
    inside = begin <= start and start + end * size <= begin + storage.nbytes()
    if not inside or not all(map(_IS_CONTIGUOUS, sums)):
        return None
    return first.as_strided((end,), (1,), (start - begin) // size), places


def _addresses(
    tensors: Sequence[torch.Tensor], first: torch.Tensor, storage: torch.UntypedStorage
) -> tuple[list[int], int]:
    """Where each begins and where the first one's storage does, in bytes.

    It looks at addresses, not at storages: there may be hundreds of experts. Fake tensors have
    none; theirs are counted from the storage, and there are none where they lie apart.
    """
    if not isinstance(first, FakeTensor):
        return list(map(_ADDRESS, tensors)), storage.data_ptr()
    if any(one.untyped_storage()._cdata != storage._cdata for one in tensors):
        return [], 0
    return [int(one.storage_offset()) * first.element_size() for one in tensors], 0
