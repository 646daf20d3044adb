"""Lines of training logs: Megatron 0.12 to main, MindSpeed, MindSpeed-LLM, ms-swift, our own.

Megatron's line is ``iteration N/ M | name: number | ...`` in every version; what versions and
relatives differ in are the names, and what stands before it (a date, a rank, a progress bar).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from accel_bridge.process.log import PREFIX

_NUMBER: Final = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_ITERATION: Final = re.compile(r"\biteration\s+(\d{1,15})\s*/\s*(\d{1,15})\s*\|")
_PAIR: Final = re.compile(rf"\s*([^:]+?)\s*:\s*({_NUMBER})\s*", re.IGNORECASE)
#: ms-swift prints dictionaries: ``{'loss': 1.2, 'iteration': '5/90', 'train_speed(s/it)': 3.9}``.
_DICT_ITERATION: Final = re.compile(
    r"['\"](?:iteration|global_step/max_steps)['\"]: ['\"](\d{1,15})/(\d{1,15})['\"]"
)
_DICT_PAIR: Final = re.compile(rf"['\"]([^'\"]+)['\"]: ['\"]?({_NUMBER})['\"]?[,}}]")
#: A line of the list of arguments that Megatron prints.
_SEQUENCE: Final = re.compile(r"(?:^|\s)(?:encoder_)?seq_length \.{2,} (\d{1,9})\s*$")
#: What ends a line for who reads it: progress bars end theirs with a carriage return.
_ENDS: Final = re.compile(r"[\r\n]+")

#: Set for the processes whose output a screen follows: they log what Megatron does not.
FACTS: Final = "_ACCEL_BRIDGE_PROGRESS"
#: Names under which one number is found, best first.
LOSSES: Final = ("lm loss", "loss", "total loss", "train/loss")
_SECONDS: Final = {
    "elapsed time per iteration (ms)": 1e-3,
    "train_speed(s/it)": 1.0,
}
_TFLOPS: Final = (
    "throughput per GPU (TFLOP/s/GPU)",
    "actual throughput per NPU (TFLOP/s/NPU)",
    "throughput per NPU (TFLOP/s/NPU)",
)
#: The names of what our own patch adds in a line of the same form, and how that line begins.
FACTS_MARK: Final = f"{PREFIX} iteration"
OPERATIONS, MEMORY, DEVICE_MEMORY = "TFLOP per device", "memory (GB)", "device memory (GB)"
OWN: Final = (OPERATIONS, MEMORY, DEVICE_MEMORY)
_MEMORY: Final = (MEMORY, "max_memory_reserved(GB)", "memory(GiB)")


@dataclass(frozen=True, slots=True)
class Iteration:
    """One logged iteration.

    :param number: from 1.
    :param of: iterations of the whole run.
    :param values: what the log says of it, by name.
    """

    number: int
    of: int
    values: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The training loss; NaN where the log has none (Megatron leaves out what is NaN)."""
        for name in LOSSES:
            if name in self.values:
                skipped = self.values.get("number of skipped iterations", 0) > 0
                # Megatron divides an empty sum where it skipped the whole interval.
                return math.nan if skipped and self.values[name] == 0 else self.values[name]
        others = (
            value
            for name, value in self.values.items()
            if name.endswith("loss") and "balancing" not in name and "z_loss" not in name
        )
        return next(others, math.nan)

    @property
    def seconds(self) -> float | None:
        for name, factor in _SECONDS.items():
            if self.values.get(name, 0) > 0:
                return self.values[name] * factor
        return None

    @property
    def batch(self) -> float | None:
        """Samples of the global batch."""
        return self.values.get("global batch size")

    @property
    def tflops(self) -> float | None:
        """Floating-point operations a second and device (10**12), by Megatron's own formula."""
        found = next((self.values[name] for name in _TFLOPS if name in self.values), None)
        operations, seconds = self.values.get(OPERATIONS), self.seconds
        return operations / seconds if found is None and operations and seconds else found

    @property
    def memory(self) -> float | None:
        """Device memory that was reserved at most, in GB."""
        return next((self.values[name] for name in _MEMORY if name in self.values), None)


@dataclass
class LogReader:
    """Reads a log line by line.

    :param sequence: tokens of a sample, once the list of arguments has said it.
    """

    sequence: int | None = None
    _last: Iteration | None = field(default=None)

    def read(self, line: str) -> Iteration | None:
        """The iteration that a line is about, with all that is known of it; else None.

        A second line about the same iteration adds to what the first one said.
        """
        found = None
        for part in _ENDS.split(line):
            found = self._read(part) or found
        return found

    def tokens_per_second(self, iteration: Iteration) -> float | None:
        """Tokens of the global batch a second."""
        if iteration.batch is None or not iteration.seconds:
            return None
        return iteration.batch * self.sequence / iteration.seconds if self.sequence else None

    def _read(self, line: str) -> Iteration | None:
        place = _ITERATION.search(line)
        if place is not None:
            values = dict(_pairs(line[place.end() :]))
        else:
            place = _DICT_ITERATION.search(line)
            if place is None:
                sequence = _SEQUENCE.search(line)
                if sequence is not None:
                    self.sequence = int(sequence[1])
                return None
            values = {name: float(number) for name, number in _DICT_PAIR.findall(line)}
        if not values:
            return None
        number, of = int(place[1]), int(place[2])
        if self._last is not None and (self._last.number, self._last.of) == (number, of):
            values = {**self._last.values, **values}
        self._last = Iteration(number, of, values)
        return self._last


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    for part in text.split("|"):
        pair = _PAIR.fullmatch(part)
        if pair is not None:
            yield pair[1], float(pair[2])


def facts_line(number: int, of: int, operations: float, memory: float, device_memory: float) -> str:
    """The line of our own patch about an iteration, for :class:`LogReader`.

    :param operations: of the iteration on one device (10**12).
    :param memory: reserved at most, in GB; ``device_memory`` is all that there is.
    """
    values = {OPERATIONS: operations, MEMORY: memory, DEVICE_MEMORY: device_memory}
    pairs = "".join(f" {name}: {value:.6g} |" for name, value in values.items())
    return f"{FACTS_MARK} {number:8d}/{of:8d} |{pairs}"
