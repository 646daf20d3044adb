"""A recording in memory, and as the JSON document that a file holds."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from accel_bridge.recording import _fields as fields
from accel_bridge.recording._moments import Moments

#: Kinds of observations in the order in which a step makes them.
KINDS: Final = ("weight", "output", "gradient", "weight gradient")


@dataclass(frozen=True, slots=True)
class Step:
    """One training step.

    :param number: from 1.
    :param loss: mean over the tokens of the global batch (nats).
    :param gradient_norm: L2 norm before clipping.
    :param seconds: wall time.
    :param data: fingerprint of the tokens in the batch, whatever their order.
    """

    number: int
    loss: float
    gradient_norm: float
    seconds: float
    data: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What one tensor was at one step, over all ranks and micro batches.

    :param kind: one of :data:`KINDS`. A gradient is that of a module's *output*.
    :param name: global name of the module or parameter, the same in every layout.
    :param stage: pipeline stage that holds it (virtual stages counted in order of execution).
    :param order: when it was made within its stage and kind.
    :param shape: shape on the first rank that has it.
    :param sample: values of that rank's tensor at even distances, or None.
    :param first: moments over all ranks of the first call in the step, where samples are kept:
        later micro batches may differ because of what happened in the first one.
    """

    step: int
    kind: str
    name: str
    stage: int
    order: int
    moments: Moments
    shape: tuple[int, ...]
    sample: array[float] | None = None
    first: Moments | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run.

    :param identity: what must be equal for two recordings to be comparable, by section.
    :param precision: dtype of the parameters that modules compute with: ``float32``...
    :param layout: sizes of the parallel dimensions.
    :param about: versions, machine and device in words.
    :param notes: what a reader should know about how the run started.
    :param arguments: all of the framework's arguments.
    :param environment: the report of ``accel-bridge env``.
    :param patches: every patch with its state and reason.
    :param limits: "kind name" -> by how much the tensor's values, its mean and root mean square,
        and its largest value differ at the first step when every output and gradient is moved by
        its format's rounding; empty where nobody measured.
    """

    identity: Mapping[str, Mapping[str, Any]]
    precision: str
    layout: Mapping[str, int]
    about: Mapping[str, str]
    notes: tuple[str, ...]
    steps: tuple[Step, ...]
    observations: tuple[Observation, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    patches: tuple[Mapping[str, str], ...] = ()
    limits: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Backend, layout and precision in one phrase."""
        sizes = [f"{name}{size}" for name, size in self.layout.items() if size > 1]
        layout = " ".join(sizes) or "one process"
        return f"{self.about.get('device', '?')}, {layout}, {self.precision}"

    @property
    def seconds(self) -> float:
        """Median wall time of a step, the first one (which warms up) left out."""
        times = sorted(step.seconds for step in self.steps[1:] or self.steps)
        return times[len(times) // 2]

    def as_document(self) -> dict[str, Any]:
        """The recording as a JSON document."""
        return {
            "identity": self.identity,
            "precision": self.precision,
            "layout": self.layout,
            "about": self.about,
            "notes": self.notes,
            "steps": [asdict(step) for step in self.steps],
            "observations": [_observation_as_json(item) for item in self.observations],
            "arguments": self.arguments,
            "environment": self.environment,
            "patches": self.patches,
            "limits": self.limits,
        }

    @classmethod
    def from_document(cls, document: Any) -> Recording:
        """Inverse of :meth:`as_document`, for a document that may hold anything.

        :raises FieldError: naming the first field that is missing or holds what it cannot hold.
        """
        given = {"limits": {}, **fields.obj(document, "the document")}  # older ones have none
        found = {name: fields.field(given, name) for name in _FIELDS}
        identity = fields.obj(found["identity"], "identity")
        layout = fields.obj(found["layout"], "layout")
        steps = fields.items(found["steps"], "steps")
        observations = fields.items(found["observations"], "observations")
        patches = fields.items(found["patches"], "patches")
        notes = fields.items(found["notes"], "notes")
        return cls(
            identity={
                fields.text(name, "identity"): fields.obj(
                    fields.shallow(section, f"identity.{name}"), f"identity.{name}"
                )
                for name, section in identity.items()
            },
            precision=fields.text(found["precision"], "precision"),
            layout={
                fields.text(name, "layout"): fields.whole(size, f"layout.{name}", least=1)
                for name, size in layout.items()
            },
            about=fields.texts(found["about"], "about"),
            notes=tuple(fields.text(note, f"notes[{n}]") for n, note in enumerate(notes)),
            steps=_in_order([_step(step, f"steps[{n}]") for n, step in enumerate(steps)]),
            observations=tuple(
                _observation_from_json(item, f"observations[{n}]")
                for n, item in enumerate(observations)
            ),
            arguments=fields.obj(fields.shallow(found["arguments"], "arguments"), "arguments"),
            environment=fields.obj(
                fields.shallow(found["environment"], "environment"), "environment"
            ),
            patches=tuple(fields.texts(one, f"patches[{n}]") for n, one in enumerate(patches)),
            limits={
                fields.text(name, "limits"): _limits(limit, f"limits.{name[:80]}")
                for name, limit in fields.obj(found["limits"], "limits").items()
            },
        )


#: Fields of the document.
_FIELDS: Final = tuple(Recording.__dataclass_fields__)


def _limits(value: Any, where: str) -> tuple[float, float, float]:
    """Older ones have one number for all three."""
    given = value if isinstance(value, list) else [value] * 3
    values, means, largest = (fields.size(one, where) for one in fields.items(given, where, 3))
    return values, means, largest


def _step(value: Any, where: str) -> Step:
    step = fields.obj(value, where)
    return Step(
        fields.whole(fields.field(step, "number", where), f"{where}.number", least=1),
        fields.number(fields.field(step, "loss", where), f"{where}.loss"),
        fields.number(fields.field(step, "gradient_norm", where), f"{where}.gradient_norm"),
        fields.seconds(fields.field(step, "seconds", where), f"{where}.seconds"),
        fields.whole(fields.field(step, "data", where), f"{where}.data"),
    )


def _in_order(steps: list[Step]) -> tuple[Step, ...]:
    if not steps:
        raise fields.FieldError("steps is empty")
    for place, (one, two) in enumerate(pairwise(steps), 1):
        if one.number >= two.number:
            raise fields.FieldError(
                f"steps[{place}].number is {two.number}, after step {one.number}"
            )
    return tuple(steps)


def _observation_as_json(item: Observation) -> list[Any]:
    sample = None if item.sample is None else base64.b64encode(item.sample.tobytes()).decode()
    return [
        item.step,
        item.kind,
        item.name,
        item.stage,
        item.order,
        _moments_as_json(item.moments),
        list(item.shape),
        sample,
        None if item.first is None else _moments_as_json(item.first),
    ]


def _moments_as_json(moments: Moments) -> list[float]:
    return [moments.count, moments.total, moments.squares, moments.largest]


def _observation_from_json(value: Any, where: str) -> Observation:
    step, kind, name, stage, order, moments, shape, encoded, first = fields.items(value, where, 9)
    if kind not in KINDS:
        raise fields.FieldError(f"{where}: the kind is none of {', '.join(KINDS)}")
    sizes = fields.items(shape, f"{where}: the shape")
    return Observation(
        fields.whole(step, f"{where}: the step", least=1),
        kind,
        fields.text(name, f"{where}: the name"),
        fields.whole(stage, f"{where}: the stage"),
        fields.whole(order, f"{where}: the order"),
        _moments_from_json(moments, f"{where}: the moments"),
        tuple(fields.whole(size, f"{where}: the shape") for size in sizes),
        None if encoded is None else _sample_from_json(encoded, f"{where}: the sample"),
        None if first is None else _moments_from_json(first, f"{where}: the first moments"),
    )


def _moments_from_json(value: Any, where: str) -> Moments:
    count, total, squares, largest = fields.items(value, where, 4)
    return Moments(
        fields.whole(count, where, least=1),
        fields.number(total, where),
        fields.size(squares, where),
        fields.size(largest, where),
    )


def _sample_from_json(value: Any, where: str) -> array[float]:
    if not isinstance(value, str):
        raise fields.FieldError(f"{where} is no text")
    try:
        return array("f", base64.b64decode(value, validate=True))
    except ValueError as error:
        raise fields.FieldError(f"{where} is no base64 of float32 values: {error}") from None
