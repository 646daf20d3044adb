"""A capsule: the operators of one module at one step, with their tensors."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from accel_bridge.recording._moments import Moments

#: Bytes of tensors in a file; what does not fit is there as statistics, 256 values, and some rows
#: of the operators that it belongs to.
ROOM: Final = 64 << 20
#: Bytes of each element, by dtype.
SIZES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("float64", "int64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
}


@dataclass(frozen=True, slots=True)
class Value:
    """What one tensor held at one time; equal content is one value.

    :param digest: of dtype, shape and bytes.
    :param sample: values at even distances.
    :param data: all bytes, row-major, or None where they did not fit.
    """

    digest: str
    dtype: str
    shape: tuple[int, ...]
    moments: Moments
    sample: array[float]
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator that ran.

    :param name: ``aten.mm.default``; a kernel contract's name, ``.backward`` after it for its
        backward pass; ``c10d.allreduce_.default``.
    :param phase: ``forward``, ``backward`` or ``update``.
    :param module: the innermost module that ran it.
    :param site: file, line and function that called it, or whose backward pass it is.
    :param kernel: what served a contract; empty for other operators.
    :param arguments: [positional, by name], as :mod:`accel_bridge.recording.tape` writes them;
        of a backward pass, also the places of the results whose gradients arrive and of the inputs
        whose gradients leave.
    :param inputs: values of the tensors in ``arguments``, in their order; -1 where the operator
        overwrites the tensor without reading it.
    :param outputs: values of the tensors that it returned, then of those that it changed.
    :param changed: which of the inputs it changed.
    :param part_inputs: where the file does not hold all of these values: those of the same operator
        on some rows, columns or heads; empty where there are none.
    :param part_outputs: of these; -1 for a sum over all rows.
    """

    name: str
    phase: str
    module: str
    site: str
    kernel: str
    arguments: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    changed: tuple[int, ...]
    part_inputs: tuple[int, ...] = ()
    part_outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Capsule:
    """The operators of one module (or phase) of every rank at one step.

    :param about: what the recording of the run says about it, and its arguments.
    :param values: of all ranks.
    :param ranks: the operators of each rank in the order in which they ran.
    """

    module: str
    step: int
    precision: str
    layout: Mapping[str, int]
    about: Mapping[str, str]
    values: tuple[Value, ...]
    ranks: tuple[tuple[Operator, ...], ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    patches: Sequence[Mapping[str, str]] = ()

    @property
    def partly(self) -> str:
        """What of the operators the file does not hold, in words; empty where it holds all."""
        parts = [
            bool(one.part_inputs)
            for operators in self.ranks
            for one in operators
            if any(self.values[at].data is None for at in (*one.inputs, *one.outputs) if at >= 0)
        ]
        if not parts:
            return ""
        return (
            f"; too large for {ROOM >> 20} MB: {sum(parts)} operators are there by some rows, "
            f"columns or heads, {len(parts) - sum(parts)} as statistics and 256 values"
        )
