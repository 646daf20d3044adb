"""The documents of recordings and capsules, as pydantic checks them: files come from strangers.

It is loaded when a file is read.
"""

from __future__ import annotations

import base64
import math
from array import array
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
)

from accel_bridge.recording._capsule import SIZES, Capsule, Operator, Value
from accel_bridge.recording._document import Observation, Recording, Step
from accel_bridge.recording._moments import Moments

Model = TypeVar("Model", bound="_Strict")
#: Names in an object.
_NAMES = 10_000
#: Elements of a tensor.
_LARGEST = 1 << 31


class FieldError(ValueError):
    """A field is missing, or holds what it cannot hold; the text says which and what."""


def _floats(text: object) -> array[float]:
    if not isinstance(text, str):
        raise ValueError("it is no text")
    return array("f", base64.b64decode(text, validate=True))


def _not_negative(value: float) -> float:
    if value < 0:
        raise ValueError("it is negative")
    return value


def _few(found: Any) -> Any:
    """Each wrong value of an object becomes an error, and all of them take memory."""
    if isinstance(found, dict) and len(found) > _NAMES:
        raise ValueError(f"it has {len(found)} names")
    return found


def _limits(found: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Older files have one number for all three."""
    made = {
        name: tuple(one) if isinstance(one, list) else (one,) * 3 for name, one in found.items()
    }
    for name, sizes in made.items():
        if len(sizes) != 3 or any(type(one) not in (int, float) or one < 0 for one in sizes):
            raise ValueError(f"{name[:80]} has no three sizes")
    return made


def _in_order(steps: list[_Step]) -> tuple[Step, ...]:
    for one, two in pairwise(steps):
        if one.number >= two.number:
            raise ValueError(f"step {two.number} comes after step {one.number}")
    return tuple(Step(**dict(one)) for one in steps)


def _known(dtype: str) -> str:
    if dtype not in SIZES:
        raise ValueError(f"the dtype is none of {', '.join(SIZES)}")
    return dtype


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


#: Whole numbers are counts and fingerprints of 64 bits.
_Count = Annotated[int, Field(ge=0, lt=1 << 64)]
_Positive = Annotated[int, Field(ge=1, lt=1 << 64)]
#: Of a tensor; infinity and NaN are sizes, too.
_Size = Annotated[float, AfterValidator(_not_negative)]
_Text = Annotated[str, Field(max_length=10_000)]
_Texts = Annotated[dict[_Text, _Text], BeforeValidator(_few)]
_Shape = Annotated[tuple[_Count, ...], FailFast()]
_Sample = Annotated[Any, AfterValidator(_floats)]
_Moments = Annotated[
    tuple[_Positive, float, _Size, _Size], AfterValidator(lambda row: Moments(*row))
]
_Observation = Annotated[
    tuple[
        _Positive,
        Literal["weight", "output", "gradient", "weight gradient"],
        _Text,
        _Count,
        _Count,
        _Moments,
        _Shape,
        _Sample | None,
        _Moments | None,
    ],
    AfterValidator(lambda row: Observation(*row)),
]
#: [positional, by name], and of a backward pass two lists of places.
_Arguments = Annotated[
    tuple[list[Any], dict[str, Any]] | tuple[list[Any], dict[str, Any], list[Any], list[Any]],
    AfterValidator(list),
]
_Values = Annotated[tuple[Annotated[int, Field(ge=-1, lt=1 << 31)], ...], FailFast()]


class _Value(NamedTuple):
    digest: _Text
    dtype: Annotated[str, AfterValidator(_known)]
    shape: Annotated[_Shape, Field(max_length=16)]
    moments: tuple[float, float, float, float]
    sample: _Sample
    stored: bool


class _Operator(NamedTuple):
    name: _Text
    phase: _Text
    module: _Text
    site: _Text
    kernel: _Text
    arguments: _Arguments
    inputs: _Values
    outputs: _Values
    changed: _Values
    part_inputs: _Values = ()
    part_outputs: _Values = ()


class _Step(_Strict):
    number: _Positive
    loss: float
    gradient_norm: float
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    data: _Count


class Head(_Strict):
    """The second line of a file."""

    format: _Positive
    bytes: _Count
    sha256: _Text


class _Run(_Strict):
    """What both kinds of files say of the run."""

    precision: _Text
    layout: Annotated[dict[_Text, _Positive], BeforeValidator(_few)]
    about: _Texts
    arguments: dict[str, Any]
    environment: dict[str, Any]
    patches: Annotated[tuple[_Texts, ...], FailFast()]


class _Recording(_Run):
    identity: Annotated[dict[_Text, dict[str, Any]], BeforeValidator(_few)]
    notes: Annotated[tuple[_Text, ...], FailFast()]
    steps: Annotated[list[_Step], FailFast(), Field(min_length=1), AfterValidator(_in_order)]
    observations: Annotated[tuple[_Observation, ...], FailFast()]
    limits: Annotated[dict[_Text, Any], AfterValidator(_limits)] = {}


class _Capsule(_Run):
    module: _Text
    step: _Positive
    values: Annotated[list[_Value], FailFast()]
    ranks: Annotated[list[Annotated[list[_Operator], FailFast()]], FailFast(), Field(min_length=1)]


def parsed(model: type[Model], text: bytes) -> Model:
    """The document that a JSON text holds.

    :raises FieldError: naming the first field that is missing or holds what it cannot hold.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        parts = (f"[{one}]" if isinstance(one, int) else f".{one[:80]}" for one in first["loc"])
        where = "".join(parts).removeprefix(".")
        raise FieldError(f"{where or 'the document'}: {first['msg']}") from None


def recording(text: bytes) -> Recording:
    """The recording of a document.

    :raises FieldError: it holds none.
    """
    return Recording(**dict(parsed(_Recording, text)))


def capsule(text: bytes, data: memoryview) -> Capsule:
    """The capsule of a document and the tensors behind it.

    :raises FieldError: it holds none.
    """
    document = parsed(_Capsule, text)
    values, place = [], 0
    for n, one in enumerate(document.values):
        elements = math.prod(one.shape)
        if elements > _LARGEST:
            raise FieldError(f"values[{n}]: the shape is larger than any tensor of a capsule")
        end = place + elements * SIZES[one.dtype] * one.stored
        if end > len(data):
            raise FieldError(f"values[{n}]: its bytes are missing")
        held = bytes(data[place:end]) if one.stored else None
        moments = Moments(max(elements, 1), *one.moments[1:])
        values.append(Value(one.digest, one.dtype, one.shape, moments, one.sample, held))
        place = end
    if place != len(data):
        raise FieldError(f"its tensors have {len(data)} bytes, not {place}")
    for r, operators in enumerate(document.ranks):
        for n, operator in enumerate(operators):
            if problem := _problem(operator, len(values)):
                raise FieldError(f"ranks[{r}][{n}]: {problem}")
    ranks = tuple(tuple(Operator(*one) for one in operators) for operators in document.ranks)
    return Capsule(**{**dict(document), "values": tuple(values), "ranks": ranks})


def _problem(one: _Operator, values: int) -> str | None:
    """Why an operator cannot have run."""
    made = (*one.outputs, *one.changed)
    if max((*one.inputs, *one.outputs, *one.part_inputs, *one.part_outputs), default=-1) >= values:
        return "a value that the file does not have"
    if min(made, default=0) < 0 or max(one.changed, default=-1) >= len(one.inputs):
        return "it makes or changes what it does not have"
    whole, part = (len(one.inputs), len(one.outputs)), (len(one.part_inputs), len(one.part_outputs))
    return "its part has another number of tensors" if part not in (whole, (0, 0)) else None
