"""Streams and events on a host that runs everything in order."""

from __future__ import annotations

import time
from typing import Any

import torch


class Event:
    """A point in time; the interface of ``torch.cuda.Event``."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Take the time."""
        self._seconds = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing to wait for: work before the event has ended."""

    def query(self) -> bool:
        """Whether the work before the event has ended: always."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to ``end_event``.

        :raises ValueError: one of them was not recorded.
        """
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3


class Stream:
    """The only order of execution; the interface of ``torch.cuda.Stream``. All are equal."""

    #: Handle of the default stream.
    cuda_stream = 0
    stream_id = 0
    device_index = 0
    device_type = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("cpu")
        self.priority = priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Lowest and highest priority, as CUDA states them."""
        return (0, -1)

    def wait_stream(self, stream: Stream) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event``, or a new one, now."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work has ended: always."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def is_capturing(self) -> bool:
        """Whether a graph is being captured: never."""
        return False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)


class ExternalStream(Stream):
    """A stream made elsewhere; here the same as any other."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device)


class StreamContext:
    """``with torch.cuda.stream(...)``: there is only one stream to be in."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None
