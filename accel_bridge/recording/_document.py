"""A recording in memory, and as the JSON document that a file holds."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

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
