"""In which order the graphs of several callables are captured.

Legend: chunk: layers that a pipeline stage runs together; microbatch: one pass through a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Step = Literal["forward", "backward", "wgrad"]


@dataclass(frozen=True)
class Order:
    """A pipeline's order of passes.

    :param passes: chunk numbers from 1: positive for a forward pass, negative for a backward pass,
        half below that (-1.5) for the weight gradients of the last one.
    :param layers: layers of each chunk.
    :param microbatches: passes through each chunk.
    """

    passes: tuple[float, ...]
    layers: tuple[int, ...]
    microbatches: int

    @property
    def starts(self) -> list[int]:
        """Number of each chunk's first layer."""
        return [sum(self.layers[:chunk]) for chunk in range(len(self.layers))]

    def steps(self) -> Iterator[tuple[int, Step, int]]:
        """(pass, what it does, index of the sample that it does it with)."""
        done = {sign: [0] * len(self.layers) for sign in (1, -1)}
        for number, one in enumerate(self.passes):
            chunk = abs(math.ceil(one)) - 1
            first = self.starts[chunk] * self.microbatches
            count = self.layers[chunk]
            if one > 0:
                base = first + done[1][chunk] * count
                yield from ((number, "forward", base + layer) for layer in range(count))
                done[1][chunk] += 1
            elif math.ceil(one) != one:
                assert math.ceil(one) - one == 0.5, (
                    f"The order diff of wgrad and dgrad must be 0.5, get {math.ceil(one) - one}."
                )
                base = first + (done[-1][chunk] - 1) * count
                yield from ((number, "wgrad", base + layer) for layer in reversed(range(count)))
            else:
                base = first + done[-1][chunk] * count
                yield from ((number, "backward", base + layer) for layer in reversed(range(count)))
                done[-1][chunk] += 1

    def layer_of(self, sample: int) -> int:
        """The callable that a sample is for."""
        for start, count in zip(self.starts, self.layers, strict=True):
            size = count * self.microbatches
            if sample < start * self.microbatches + size:
                return start + (sample - start * self.microbatches) % count
        raise IndexError(sample)


def pipeline_order(
    passes: Sequence[float], layers: Sequence[int] | int | None, callables: int, samples: int
) -> Order:
    """The order of a pipeline, checked.

    :param layers: layers of each chunk, or of every chunk; None: as many for each.
    :raises AssertionError: numbers that do not fit together.
    """
    whole = [one for one in passes if math.ceil(one) == one]
    chunks = int(max(whole))
    microbatches = len(whole) // chunks // 2
    assert chunks * microbatches * 2 == len(whole), f"_order has {len(whole)} passes"
    if layers is None:
        assert samples % (chunks * microbatches) == 0, (
            f"{samples} samples for {chunks} chunks of {microbatches} microbatches"
        )
        layers = samples // chunks // microbatches
    counts = (layers,) * chunks if isinstance(layers, int) else tuple(layers)
    assert len(counts) == chunks, (
        "If _num_layers_per_chunk is provided, it must be an integer or a list of"
        f" {chunks} integers, but got {layers}."
    )
    if len(whole) != len(passes):
        assert all(count == 1 for count in counts), (
            "Each model chunk must have only one layer when delay_wgrad_compute is True."
        )
    total = sum(counts)
    assert callables == total, (
        f"Callables should have ({total}) entries when order input is provided but got {callables}."
    )
    assert samples == total * microbatches, (
        f"Expected {total * microbatches} args tuple, but got {samples}."
    )
    return Order(tuple(passes), counts, microbatches)


def plain_order(callables: int) -> Order:
    """Every forward pass, then every backward pass, each with its weight gradients."""
    chunks = range(1, callables + 1)
    backward = [one for chunk in reversed(chunks) for one in (-chunk, -chunk - 0.5)]
    return Order((*chunks, *backward), (1,) * callables, 1)
