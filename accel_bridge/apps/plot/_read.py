"""Runs from files and folders: training logs, recordings, TensorBoard's events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from accel_bridge import recording
from accel_bridge.apps.plot._events import EVENTS, has_events, read_events
from accel_bridge.apps.plot._run import Point, Run, by_iteration
from accel_bridge.errors import BridgeError
from accel_bridge.process.progress import Iteration, LogReader

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
