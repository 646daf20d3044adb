"""Runs from TensorBoard's event files, by TensorBoard's own reader."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from accel_bridge.apps.plot._run import Point, Run, by_iteration
from accel_bridge.errors import BridgeError
from accel_bridge.process.extras import require
from accel_bridge.process.progress import LOSSES

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
    return by_iteration(name, _points(with_loss[0]))


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


def _points(scalars: dict[str, list[Any]]) -> list[Point]:
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
