"""Tensor types from before devices were arguments: ``torch.cuda.FloatTensor`` etc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

#: Tensor types such as ``torch.cuda.FloatTensor``.
LEGACY_TENSORS: Final = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class LegacyTensorMeta(type):
    """Makes ``isinstance(tensor, torch.cuda.FloatTensor)`` and calls of the type work."""

    dtype: torch.dtype
    constructor: Callable[..., torch.Tensor]

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and instance.is_cuda
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        return cls.constructor(*args, **kwargs).to("cuda")


def legacy_tensor(name: str, dtype: torch.dtype) -> type:
    """The tensor type ``torch.cuda.<name>`` for the device."""
    return LegacyTensorMeta(
        name,
        (),
        {
            "__module__": "torch.cuda",
            "dtype": dtype,
            "constructor": staticmethod(getattr(torch, name)),
        },
    )
