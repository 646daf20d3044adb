"""Runs from files and folders: training logs, recordings, TensorBoard's events."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from accel_bridge import recording
from accel_bridge.errors import BridgeError
from accel_bridge.process.extras import require
from accel_bridge.process.progress import LOSSES, Iteration, LogReader

# A training run as a picture needs it: its points, and what can be said of them in numbers.

#: Smoothing averages over so large a part of the longest run, and at most so many points.
_PART, _MOST = 40, 100
#: Numbers beyond this are no losses any more: an axis that reaches them shows nothing else.
CEILING = 1e30


@dataclass(frozen=True, slots=True)
class Point:
    """One logged iteration.

    :param loss: NaN where the log has none.
    :param seconds: time of the iteration; None if it is not known.
    :param tokens: tokens a second, of all devices together.
    :param tflops: floating-point operations a second and device (10**12).
    """

    iteration: int
    loss: float
    seconds: float | None = None
    tokens: float | None = None
    tflops: float | None = None


@dataclass(frozen=True)
class Run:
    """A run: its name, its points by iteration, and what a reader should know about them."""

    name: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def last(self) -> int:
        """The last logged iteration."""
        return self.points[-1].iteration

    @property
    def seconds(self) -> float | None:
        """Median time of an iteration; the first one of several, which warms up, is left out."""
        return _median([point.seconds for point in self.points[1:] or self.points])

    @property
    def tokens(self) -> float | None:
        """Median of the tokens a second, as :attr:`seconds`."""
        return _median([point.tokens for point in self.points[1:] or self.points])

    @property
    def tflops(self) -> float | None:
        """Median of the operations a second and device, as :attr:`seconds`."""
        return _median([point.tflops for point in self.points[1:] or self.points])

    def loss(self, over: int, at: int | None = None) -> float:
        """Where the curve, averaged over ``over`` points, ends at the iteration ``at``, or at last.

        NaN where there is no finite loss.
        """
        values = [point.loss for point in self.points if at is None or point.iteration <= at]
        return smoothed(values, over)[-1] if values else math.nan


def by_iteration(name: str, points: Sequence[Point], notes: Sequence[str] = ()) -> Run:
    """A run from points in the order in which they were logged.

    Of an iteration that was trained again, after a resume, the later point counts.
    """
    found: dict[int, Point] = {}
    again = 0
    for point in points:
        again += point.iteration in found
        found[point.iteration] = point
    said = list(notes)
    if again:
        said.append(f"{again} iterations were trained again after a resume: the later ones count")
    ordered = tuple(sorted(found.values(), key=_place))
    broken = [point.iteration for point in ordered if not is_drawable(point.loss)]
    if broken:
        said.append(f"{len(broken)} iterations have no finite loss; the first is {broken[0]}")
    return Run(name, ordered, tuple(said))


def window(runs: Sequence[Run]) -> int:
    """Over how many points is averaged if nobody says it: the same for all runs."""
    return min(_MOST, max(1, max(len(run.points) for run in runs) // _PART))


def smoothed(values: Sequence[float], over: int) -> list[float]:
    """Mean of each value and its neighbours on both sides, ``over`` together.

    What is not finite is left out. At the ends there are fewer neighbours; the last mean is that of
    :func:`tail` values.
    """
    sums, counts = [0.0], [0]
    for value in values:
        good = is_drawable(value)
        sums.append(sums[-1] + (value if good else 0.0))
        counts.append(counts[-1] + good)
    result = []
    for place in range(len(values)):
        low, high = max(0, place - over // 2), min(len(values), place + tail(over))
        count = counts[high] - counts[low]
        result.append((sums[high] - sums[low]) / count if count else math.nan)
    return result


def tail(over: int) -> int:
    """How many values the last mean of a curve is of."""
    return over // 2 + 1


def is_drawable(value: float) -> bool:
    """Whether a value is a number that an axis can reach."""
    return abs(value) < CEILING


def _place(point: Point) -> int:
    return point.iteration


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# Runs from TensorBoard's event files, by TensorBoard's own reader.

#: Part of the name of every event file.
EVENTS: Final = "tfevents"
#: Scalars that Megatron writes beside the losses: seconds, and operations a second and device.
_SECONDS: Final = "iteration-time"
_TFLOPS: Final = "throughput"


def has_events(folder: Path) -> bool:
    """Whether the folder, or one below it, holds an event file."""
    return next(folder.rglob(f"*{EVENTS}*"), None) is not None


def read_events(path: Path, name: str) -> Run:
    """The run in an event file, or in a folder with event files somewhere below it.

    :raises MissingPackage: TensorBoard is not installed.
    :raises BridgeError: they hold no loss, or those of several runs.
    """
    require("tensorboard")
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    folders = [path]
    if path.is_dir():
        folders = sorted({event.parent for event in path.rglob(f"*{EVENTS}*")})
    scalars = [found for found in map(_scalars, folders) if found]
    with_loss = [found for found in scalars if _loss_tag(list(found))]
    if len(with_loss) > 1:
        raise BridgeError(
            f"{path} holds several runs.",
            evidence=[str(folder) for folder in folders[:5]],
            next=f"accel-bridge plot {' '.join(str(folder) for folder in folders[:5])}",
        )
    if not with_loss:
        tags = sorted({tag for found in scalars for tag in found})
        raise BridgeError(
            f"{path} holds no training loss.",
            evidence=f"scalars in its event files: {', '.join(tags[:8]) or 'none'}",
            next="train with --tensorboard-dir (and --tensorboard-log-interval 1), or name the log",
        )
    return by_iteration(name, _event_points(with_loss[0]))


def _scalars(path: Path) -> dict[str, list[Any]]:
    """Name -> events with step, value and wall_time."""
    from tensorboard.backend.event_processing.event_accumulator import (
        SCALARS,
        TENSORS,
        EventAccumulator,
    )
    from tensorboard.util import tensor_util

    reader = EventAccumulator(str(path), size_guidance={SCALARS: 0, TENSORS: 0})
    try:
        reader.Reload()
        tags = reader.Tags()
        found = {tag: list(reader.Scalars(tag)) for tag in tags[SCALARS]}
        # A newer form of scalars, which other writers use.
        for tag in tags[TENSORS]:
            events = reader.Tensors(tag)
            values = [tensor_util.make_ndarray(event.tensor_proto) for event in events]
            if values and all(value.size == 1 and value.dtype.kind in "fiu" for value in values):
                found[tag] = [
                    _Scalar(event.step, float(value), event.wall_time)
                    for event, value in zip(events, values, strict=True)
                ]
    except Exception as error:  # whatever TensorBoard makes of files that are damaged
        raise BridgeError(
            f"TensorBoard cannot read {path}.",
            evidence=f"{type(error).__name__}: {error}",
            next="name another folder, or the log of the same run",
        ) from error
    return found


class _Scalar:
    """An event as TensorBoard's own: step, value, wall_time."""

    def __init__(self, step: int, value: float, wall_time: float) -> None:
        self.step, self.value, self.wall_time = step, value, wall_time


def _loss_tag(tags: Sequence[str]) -> str | None:
    """Which scalar is the training loss."""
    others = [
        tag
        for tag in tags
        if tag.endswith("loss")
        and not any(word in tag for word in ("valid", "test", "eval", "balancing", "z_loss"))
    ]
    return next((tag for tag in (*LOSSES, *others) if tag in tags), None)


def _event_points(scalars: dict[str, list[Any]]) -> list[Point]:
    losses = scalars[_loss_tag(list(scalars)) or ""]
    seconds = {event.step: event.value for event in scalars.get(_SECONDS, ())}
    tflops = {event.step: event.value for event in scalars.get(_TFLOPS, ())}
    if not seconds:  # not logged: what lies between two events
        for one, two in pairwise(losses):
            if two.step > one.step and two.wall_time > one.wall_time:
                seconds[two.step] = (two.wall_time - one.wall_time) / (two.step - one.step)
    return [
        Point(event.step, event.value, seconds.get(event.step), None, tflops.get(event.step))
        for event in losses
    ]


#: What a folder's logs are called.
_LOGS: Final = ("*.log", "*.txt", "*.jsonl", "*.out")
#: A line is read up to here: nothing that is looked for is longer.
_LINE: Final = 1 << 20


class PlotError(BridgeError):
    """What should be drawn cannot be read, or holds no training."""


def read_run(path: Path, name: str = "") -> Run:
    """The run in a log, a recording, an event file, or a folder with logs or event files.

    The logs of a folder are one run: what was stopped and resumed.

    :param name: of the run; by default its path.
    :raises PlotError: there is no training in it.
    :raises BridgeError: a recording cannot be read, or TensorBoard's reader is not installed.
    """
    name = name or str(path)
    try:
        if path.is_dir():
            run = _read_folder(path, name)
        elif not path.exists():
            raise PlotError(
                f"There is no {path}.",
                evidence=f"looked in {Path.cwd()}",
                next="name a training log, a recording, or a folder with logs or event files",
            )
        elif not path.is_file():
            raise PlotError(
                f"{path} is neither a file nor a folder.",
                evidence="a device, a pipe or a socket",
                next="save what it says in a file, and name that",
            )
        else:
            run = _read_file(path, name)
    except OSError as error:
        raise PlotError(
            f"{path} cannot be read.",
            evidence=str(error),
            next="name a file that you may read",
        ) from error
    if not run.points:
        raise _nothing(path)
    return run


def _read_folder(folder: Path, name: str) -> Run:
    logs = sorted(path for kind in _LOGS for path in folder.glob(kind) if path.is_file())
    points = [point for path in logs for point in _points(path)]
    if points:
        return by_iteration(name, points)
    if has_events(folder):
        return read_events(folder, name)
    raise PlotError(
        f"{folder} holds no training run.",
        evidence=f"{len(logs)} files {', '.join(_LOGS)} in it without an iteration, and no "
        f"{EVENTS} in it or below",
        next="name the folder that --tensorboard-dir named, or a log",
    )


def _read_file(path: Path, name: str) -> Run:
    with path.open("rb") as file:
        head = file.read(len(recording.MAGIC))
    if head == recording.MAGIC:
        return _from_recording(recording.read(path), name)
    if EVENTS in path.name:
        return read_events(path, name)
    return by_iteration(name, list(_points(path)))


def _points(path: Path) -> Iterator[Point]:
    """The iterations of a log; a second line about one adds to the first."""
    reader, last = LogReader(), None
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(_LINE):
            found = reader.read(line)
            if found is not None:
                if last is not None and last.number != found.number:
                    yield _point(last, reader)
                last = found
    if last is not None:
        yield _point(last, reader)


def _point(found: Iteration, reader: LogReader) -> Point:
    tokens = reader.tokens_per_second(found)
    return Point(found.number, found.loss, found.seconds, tokens, found.tflops)


def _from_recording(found: recording.Recording, name: str) -> Run:
    sizes = [found.arguments.get(key) for key in ("global_batch_size", "seq_length")]
    tokens = 1.0
    for size in sizes:
        tokens *= size if isinstance(size, int) and size > 0 else 0
    return by_iteration(
        name,
        [
            Point(
                step.number,
                step.loss,
                step.seconds or None,
                tokens / step.seconds if tokens and step.seconds else None,
            )
            for step in found.steps
        ],
    )


def _nothing(path: Path) -> PlotError:
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(300).strip()
    first = head.splitlines()[0][:80] if head else ""
    return PlotError(
        f"{path} holds no training run.",
        evidence=f"it begins with {first!r}" if head else "the file is empty",
        next="name what `accel-bridge pretrain` or your script printed (lines with `iteration N/ M "
        "| ... lm loss`), a recording, or a TensorBoard folder",
    )
