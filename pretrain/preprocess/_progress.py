"""What the user sees while it runs and at the end. All on standard error, like Megatron's."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accel_bridge.process.log import tell

from ._checkpoint import Progress as Counts

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between plain lines at least.
_LINE_SECONDS = 1.0


@dataclass(frozen=True)
class Summary:
    """A finished run.

    :param start: counts when it was resumed, zeros otherwise.
    :param tokens: ids written, by output prefix.
    :param seconds: wall time of this process; an interrupted part is not in it.
    """

    counts: Counts
    start: Counts
    tokens: dict[str, int]
    seconds: float

    def lines(self) -> list[str]:
        """The summary as text."""
        counts = self.counts
        documents = counts.documents - self.start.documents
        seconds = max(self.seconds, 1e-9)
        engines = ", ".join(
            f"{name} {count:,}" for name, count in sorted(counts.engine_counts.items()) if count
        )
        result = [
            f"documents  {counts.documents:,}",
            *(f"tokens     {count:,}  {prefix}.bin" for prefix, count in self.tokens.items()),
            f"engines    {engines or 'none: no text'}",
            f"skipped    {counts.skipped:,}",
            f"time       {self.seconds:.2f} s, {documents / seconds:,.0f} docs/s, "
            f"{(counts.input_bytes - self.start.input_bytes) / 1e6 / seconds:.1f} MB/s",
        ]
        if self.start.blocks:
            result.append(f"resumed    after {self.start.documents:,} documents")
        return result


class Reporter:
    """A bar on a terminal, lines of text elsewhere.

    :param total_bytes: size of the whole input; 0 if that is not known beforehand.
    :param log_interval: documents between lines.
    """

    def __init__(self, total_bytes: int, log_interval: int, start: Counts) -> None:
        self._started = time.perf_counter()
        self._last_line = self._started
        self._interval = log_interval
        self._start = start
        self._reported = start.documents
        self._bar: Progress | None = (
            _bar() if sys.stderr is not None and sys.stderr.isatty() else None
        )
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("", total=total_bytes or None, text="")

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._started

    def update(self, counts: Counts) -> None:
        """Show progress."""
        if self._bar:
            self._bar.update(self._task, completed=counts.input_bytes, text=self._text(counts))
            self._bar.refresh()
            return
        now = time.perf_counter()
        enough = counts.documents - self._reported >= self._interval
        if enough and now - self._last_line >= _LINE_SECONDS:
            self._reported = counts.documents
            self._last_line = now
            tell(f"Processed {self._text(counts)}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.stop()

    def _text(self, counts: Counts) -> str:
        seconds = max(self.seconds, 1e-9)
        rate = (counts.documents - self._start.documents) / seconds
        speed = (counts.input_bytes - self._start.input_bytes) / 1e6 / seconds
        return f"{counts.documents} documents ({rate:.1f} docs/s, {speed:.2f} MB/s)."


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("preprocess"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
    )
