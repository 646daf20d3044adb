"""Recordings made by hand: two runs of a model with two layers, and what can go wrong in them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace

from accel_bridge.recording import Moments, Observation, Recording, Step

#: (kind, name) in the order of computation; backward runs the other way round.
MODULES = ("embedding", "layers.0.attention", "layers.0.mlp", "layers.1.attention", "layers.1.mlp")
VALUES = 256

#: Gives the noise of one value: (kind, name, step, exact value) -> value.
Change = Callable[[str, str, int, float], float]


def same(kind: str, name: str, step: int, value: float) -> float:
    """No change."""
    return value


def rounding(precision: float, seed: int) -> Change:
    """Every value is off by up to ``precision`` of itself."""
    source = random.Random(seed)

    def change(kind: str, name: str, step: int, value: float) -> float:
        return value * (1 + source.uniform(-precision, precision))

    return change


def recording(
    change: Change = same,
    *,
    steps: int = 4,
    loss: Callable[[int], float] = lambda step: 5.0 - 0.1 * step,
    **fields: object,
) -> Recording:
    """A recording whose tensors come from one random source, changed by ``change``."""
    made = Recording(
        identity={
            "model": {"hidden_size": 64},
            "training": {"lr": 0.001},
            "weights": {"fingerprint": "0123"},
        },
        precision="float32",
        layout={"TP": 1, "DP": 1},
        about={"device": "CPU"},
        notes=(),
        steps=tuple(
            Step(number, loss(number), 1.0 / number, 0.1, 1000 + number)
            for number in range(1, steps + 1)
        ),
        observations=tuple(_observations(change, (1, 2))),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def _observations(change: Change, steps: tuple[int, ...]) -> Iterator[Observation]:
    source = random.Random(0)
    for step in steps:
        for kind in ("weight", "output", "gradient", "weight gradient"):
            names = MODULES[::-1] if kind == "gradient" else MODULES
            for order, name in enumerate(names):
                exact = [source.gauss(0.0, 0.5) for _ in range(VALUES)]
                values = [change(kind, name, step, value) for value in exact]
                yield Observation(
                    step, kind, name, 0, order, moments(values), (1, VALUES), array("f", values)
                )


def moments(values: list[float]) -> Moments:
    """The moments of a list."""
    return Moments(
        len(values), sum(values), sum(v * v for v in values), max(abs(v) for v in values)
    )
