"""A capsule: the operators of one module at one step, with their tensors, in a file.

The file is a recording's (two lines of text, then zstd) with another first line. What is
compressed is eight bytes with the length of a JSON document, the document, and the tensors' bytes
one after the other. Nothing in it is code.
"""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from accel_bridge.recording import _fields as fields
from accel_bridge.recording._file import (
    DOCUMENT,
    RecordingError,
    as_file,
    read_payload,
    understood,
    within_memory,
)
from accel_bridge.recording._moments import Moments

CAPSULE_MAGIC: Final = b"accel-bridge capsule\n"
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
#: Elements of a tensor.
_LARGEST: Final = 1 << 31
_LENGTH: Final = 8


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


def write_capsule(capsule: Capsule, path: Path) -> int:
    """Write the file, whole or not at all; its size in bytes.

    :raises OutputError: it cannot be written.
    :raises RecordingError: zstandard is missing, or there is too much to be read again.
    """
    document = {
        **{name: getattr(capsule, name) for name in _PLAIN},
        "values": [_value_as_json(value) for value in capsule.values],
        "ranks": [[_operator_as_json(one) for one in operators] for operators in capsule.ranks],
    }
    text = json.dumps(document, separators=(",", ":"), default=str).encode()
    if not within_memory(text):
        raise RecordingError(
            f"The capsule of {capsule.module} has {len(text) >> 20} MB without its tensors, which "
            "is too much to be read again.",
            evidence=f"{sum(map(len, capsule.ranks))} operators",
            next="name a smaller module with --module",
        )
    data = b"".join(value.data for value in capsule.values if value.data is not None)
    return as_file(CAPSULE_MAGIC, len(text).to_bytes(_LENGTH, "little") + text + data, path)


def read_capsule(path: Path) -> Capsule:
    """Read a file.

    :raises RecordingError: no such file, no capsule, truncated, edited, or of a later format.
    """

    def parsed() -> Capsule:
        return _parsed(read_payload(path, CAPSULE_MAGIC, "capsule", DOCUMENT + ROOM))

    return understood(path, "capsule", parsed)


_PLAIN: Final = (
    *("module", "step", "precision", "layout", "about", "arguments", "environment", "patches"),
)


def _parsed(content: bytes) -> Capsule:
    length = int.from_bytes(content[:_LENGTH], "little")
    text, data = content[_LENGTH : _LENGTH + length], memoryview(content)[_LENGTH + length :]
    if not within_memory(text):
        raise fields.FieldError("its document would take too much memory")
    document = fields.obj(json.loads(text), "the document")
    found = {name: fields.field(document, name) for name in (*_PLAIN, "values", "ranks")}
    values, place = [], 0
    for n, item in enumerate(fields.items(found["values"], "values")):
        value, size = _value(item, f"values[{n}]", data[place:])
        values.append(value)
        place += size
    if place != len(data):
        raise fields.FieldError(f"its tensors have {len(data)} bytes, not {place}")
    ranks = fields.items(found["ranks"], "ranks")
    if not ranks:
        raise fields.FieldError("ranks is empty")
    patches = fields.items(found["patches"], "patches")
    return Capsule(
        fields.text(found["module"], "module"),
        fields.whole(found["step"], "step", least=1),
        fields.text(found["precision"], "precision"),
        {
            fields.text(name, "layout"): fields.whole(size, f"layout.{name}", least=1)
            for name, size in fields.obj(found["layout"], "layout").items()
        },
        fields.texts(found["about"], "about"),
        tuple(values),
        tuple(
            tuple(
                _operator(one, f"ranks[{r}][{n}]", len(values))
                for n, one in enumerate(fields.items(operators, f"ranks[{r}]"))
            )
            for r, operators in enumerate(ranks)
        ),
        fields.obj(fields.shallow(found["arguments"], "arguments"), "arguments"),
        fields.obj(fields.shallow(found["environment"], "environment"), "environment"),
        tuple(fields.texts(one, f"patches[{n}]") for n, one in enumerate(patches)),
    )


def _value_as_json(value: Value) -> list[Any]:
    moments = value.moments
    return [
        value.digest,
        value.dtype,
        value.shape,
        [moments.count, moments.total, moments.squares, moments.largest],
        base64.b64encode(value.sample.tobytes()).decode(),
        value.data is not None,
    ]


def _value(item: Any, where: str, data: memoryview) -> tuple[Value, int]:
    digest, dtype, shape, moments, sample, stored = fields.items(item, where, 6)
    if fields.text(dtype, where) not in SIZES:
        raise fields.FieldError(f"{where}: the dtype is none of {', '.join(SIZES)}")
    sizes = tuple(
        fields.whole(size, f"{where}: the shape")
        for size in fields.items(shape, f"{where}: the shape")
    )
    if len(sizes) > 16 or math.prod(sizes) > _LARGEST:
        raise fields.FieldError(f"{where}: the shape is larger than any tensor of a capsule")
    size = math.prod(sizes) * SIZES[dtype] if stored is True else 0
    if size > len(data):
        raise fields.FieldError(f"{where}: its bytes are missing")
    numbers = [
        fields.number(one, f"{where}: the moments")
        for one in fields.items(moments, f"{where}: the moments", 4)
    ]
    try:
        values = array("f", base64.b64decode(fields.text(sample, where), validate=True))
    except ValueError as error:
        raise fields.FieldError(f"{where}: the sample is no base64 of float32: {error}") from None
    return (
        Value(
            fields.text(digest, f"{where}: the digest"),
            dtype,
            sizes,
            Moments(max(int(math.prod(sizes)), 1), *numbers[1:]),
            values,
            bytes(data[:size]) if stored is True else None,
        ),
        size,
    )


def _operator_as_json(one: Operator) -> list[Any]:
    """Without the part where there is none, as files were before there were any."""
    found = [getattr(one, name) for name in Operator.__slots__]
    return found if one.part_inputs else found[:-2]


def _operator(item: Any, where: str, values: int) -> Operator:
    parts = len(fields.items(item, where)) == len(Operator.__slots__)
    words, rest = fields.items(item, where, len(Operator.__slots__) - 2 * (not parts))[:5], item[5:]
    arguments, inputs, outputs, changed, *part = rest
    given = fields.items(fields.shallow(arguments, f"{where}: the arguments"), where)
    if len(given) not in (2, 4):
        raise fields.FieldError(f"{where}: its arguments are not [positional, by name, ...]")
    fields.items(given[0], where)
    fields.obj(given[1], where)
    read, made, touched, part_read, part_made = (
        tuple(-1 if one == -1 else fields.whole(one, where) for one in fields.items(found, where))
        for found in (inputs, outputs, changed, *(part or ([], [])))
    )
    if any(one >= values for one in (*read, *made, *part_read, *part_made)) or -1 in made:
        raise fields.FieldError(f"{where}: a value that the file does not have")
    if parts and (len(part_read), len(part_made)) != (len(read), len(made)):
        raise fields.FieldError(f"{where}: its part has another number of tensors")
    if any(not 0 <= one < len(read) for one in touched):
        raise fields.FieldError(f"{where}: it changes an input that it does not have")
    name, phase, module, site, kernel = (fields.text(word, where) for word in words)
    return Operator(
        *(name, phase, module, site, kernel, arguments),
        *(read, made, touched, part_read, part_made),
    )
