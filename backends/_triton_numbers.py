"""Arithmetic of Triton's interpreter in bfloat16 and float8, which NumPy does not have.

The interpreter keeps such numbers as their bits and computes with the bits: a sum or a product of
two bfloat16 blocks is noise, and a float32 is cut off where hardware rounds to the nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from accel_bridge.device import Context

#: Operations of the interpreter's builder on floating-point blocks, beside all ``create_fcmp...``.
_OPERATIONS: Final = (
    *("fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "fma", "dot"),
    *("approx_divf", "precise_divf"),
    *("minimumf", "minnumf", "maximumf", "maxnumf", "clampf", "floor", "ceil"),
    *("cos", "sin", "exp", "exp2", "log", "log2", "erf", "sqrt", "precise_sqrt", "rsqrt"),
)


def take_numbers(context: Context, interpreter: ModuleType) -> None:
    """Give ``triton.runtime.interpreter`` bfloat16 and float8 as hardware computes them."""
    builder = interpreter.InterpreterBuilder
    names = [f"create_{name}" for name in _OPERATIONS]
    names += [name for name in dir(builder) if name.startswith("create_fcmp")]
    for name in names:
        context.wrap(builder, name, _in_float32)
    for name in ("cast_impl", "create_fp_to_fp"):
        context.wrap(builder, name, _converted)
    context.wrap(builder, "create_splat", _of_its_kind)

    def get_bf16(builder: Any, value: float) -> Any:
        """A constant; Triton's own builder has one for every type but this."""
        handle = builder.get_fp32(value)
        return _handle(handle, rounded(handle.data), "bfloat16")

    context.journal.set(builder, "get_bf16", get_bf16)


def _in_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    """The operation in float32, its result rounded to bfloat16 once."""

    def operation(builder: Any, *operands: Any) -> Any:
        narrow = [_type(one) == "bf16" for one in operands]
        if not any(narrow):
            return original(builder, *operands)
        wide = [
            _handle(one, widened(one.data), "float32") if is_narrow else one
            for one, is_narrow in zip(operands, narrow, strict=True)
        ]
        result = original(builder, *wide)
        # The accumulator of a GEMM, the third operand, has a type of its own.
        if len(narrow) > 2 and not narrow[2]:
            return result
        if result.data.dtype != "float32":  # a comparison
            return _handle(result, result.data, "bfloat16")
        return _handle(result, rounded(result.data), "bfloat16")

    return operation


def _converted(original: Callable[..., Any]) -> Callable[..., Any]:
    """A conversion to and from bfloat16 and float8, to the nearest unless told otherwise."""

    def conversion(builder: Any, source: Any, target: Any, *rounding: Any) -> Any:
        before, after = _type(source), target.scalar.name
        down = not rounding or str(rounding[0]).endswith(("RTNE", "None"))
        if before == "bf16" and after == "fp32":
            return _handle(source, widened(source.data), "float32")
        if before == "fp32" and after == "bf16" and down:
            return _handle(source, rounded(source.data), "bfloat16")
        float8 = _float8()
        if before in float8 and after == "fp32":
            return _handle(source, _from_float8(source.data, float8[before]), "float32")
        if before == "fp32" and after in float8 and down:
            data = _to_float8(source.data, float8[after])
            return type(source)(data, target.scalar)
        return original(builder, source, target, *rounding)

    return conversion


def _of_its_kind(original: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar for every place of a block; a comparison, whose handle says int32, stays one.

    Triton 3.9 takes no mask of integers.
    """

    def splat(builder: Any, kind: Any, scalar: Any) -> Any:
        result = original(builder, kind, scalar)
        result.data = result.data.astype(scalar.data.dtype, copy=False)
        return result

    return splat


def widened(bits: Any) -> Any:
    """float32 values of an array of bfloat16 bits (uint16); exact."""
    import numpy as np

    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: Any) -> Any:
    """bfloat16 bits (uint16) of an array of float32, to the nearest, ties to even."""
    import numpy as np

    bits = values.view(np.uint32)
    nearest = (bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16
    # A NaN stays one, whatever its low bits are.
    return np.where(np.isnan(values), (bits >> 16) | 0x40, nearest).astype(np.uint16)


def _float8() -> dict[str, Any]:
    """Triton's name of a float8 -> torch's type."""
    import torch

    return {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


def _from_float8(bits: Any, dtype: Any) -> Any:
    import torch

    return torch.from_numpy(bits.copy()).view(dtype).float().numpy()


def _to_float8(values: Any, dtype: Any) -> Any:
    """Too large values become the largest, as PTX's ``cvt.rn.satfinite`` has it."""
    import torch

    largest = torch.finfo(dtype).max
    return (
        torch.from_numpy(values.copy()).clamp(-largest, largest).to(dtype).view(torch.uint8).numpy()
    )


def _type(operand: Any) -> str | None:
    """Triton's name of an operand's scalar type; None for what is no block."""
    dtype = getattr(operand, "dtype", None)
    return getattr(getattr(dtype, "scalar", None), "name", None)


def _handle(like: Any, data: Any, dtype: str) -> Any:
    import triton.language as tl

    return type(like)(data, getattr(tl, dtype))
