"""Tensors that do not keep their memory alive."""

from __future__ import annotations

from typing import Any

import torch


class _Borrowed:
    """Memory of a CUDA tensor without its owner, for ``torch.as_tensor``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "strides": None,
            "typestr": _typestr(tensor.dtype),
            "data": (tensor.data_ptr() if tensor.numel() else 0, False),
            "version": 3,
        }


def _typestr(dtype: torch.dtype) -> str:
    """A type of numpy's with as many bytes; the result is viewed in the tensor's own dtype."""
    return {1: "|i1", 2: "<f2", 4: "<i4" if dtype == torch.int32 else "<f4", 8: "<i8"}[
        dtype.itemsize
    ]


def make_weak_ref(x: Any) -> Any:
    """``x`` with every CUDA tensor replaced by one that does not own its memory.

    :raises TypeError: something else than tensors, numbers and containers of them.
    """
    if isinstance(x, torch.Tensor):
        if not x.is_cuda or x.device.type != "cuda":
            return x
        return torch.as_tensor(_Borrowed(x), device=x.device).view(x.dtype)
    if isinstance(x, (tuple, list)):
        return type(x)(make_weak_ref(one) for one in x)
    if isinstance(x, dict):
        return {name: make_weak_ref(one) for name, one in x.items()}
    if x is None or isinstance(x, (int, float, bool)):
        return x
    raise TypeError(f"Invalid type {type(x)} to make weak ref")
