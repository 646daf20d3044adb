"""What a terminal shows of a training run: one line that moves, and what must not be missed.

A carriage return and spaces are all it needs, so that it works on every terminal.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

from accel_bridge.errors import ERROR_PREFIX, printable
from accel_bridge.process.log import PREFIX
from accel_bridge.process.progress._lines import DEVICE_MEMORY, OWN, Iteration, LogReader

#: Set for the processes whose output a screen follows: they log what Megatron does not.
FACTS: Final = "_ACCEL_BRIDGE_PROGRESS"

#: Statuses of runs that somebody ended: no reason has to be shown.
_STOPPED: Final = (128 + signal.SIGINT, 128 + signal.SIGTERM)
#: Seconds between two drawings of the line.
_PERIOD: Final = 0.1
#: Lines of the log that are shown when a run has failed without a traceback.
TAIL: Final = 20
#: At most so many lines of a traceback are shown.
_TRACEBACK: Final = 40
#: Lines in which the reason of a failure is looked for.
_KEPT: Final = 400
#: Iterations whose mean time tells how long the rest will take.
_RECENT: Final = 10

_TROUBLE: Final = re.compile(
    r"\b(?:warn|warning|error|critical|fatal|exception)\b|\b[A-Z]\w*(?:Error|Exception|Warning)\b",
    re.IGNORECASE,
)
#: Numbers and paths of processes: lines that differ only in them are one warning.
_VARIES: Final = re.compile(r"\d+")
#: Events that are worth a line of their own.
_EVENT: Final = re.compile(r"validation.* loss at |successfully saved checkpoint|exiting program")
#: Where a warning of Python comes from: the log says it.
_PLACE: Final = re.compile(r"^\S+\.py:\d+: ")
#: How the bridge's lines begin.
_OURS: Final = (PREFIX, ERROR_PREFIX.partition(" ")[0])
_TRACE: Final = "Traceback (most recent call last)"
_PARTS: Final = ("  evidence:", "  next:")
#: A table, in which words like "error" are names.
_DOTS: Final = re.compile(r" \.{2,} ")


class Screen:
    """Shows a run on a terminal while its lines are fed.

    :param stream: the terminal.
    :param clock: seconds.
    :param only_line: show the line alone; somebody else says what went wrong.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        only_line: bool = False,
    ) -> None:
        self._stream = stream
        self._only_line = only_line
        self._clock = clock
        self._began = clock()
        self._drawn = 0
        self._next = 0.0
        self._reader = LogReader()
        self._iteration: Iteration | None = None
        self._facts: dict[str, float] = {}
        self._doing = ""
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._said: set[str] = set()
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._explained = False
        self._in_error = False

    def feed(self, line: str) -> None:
        """Take one line of the log; show it if it must not be missed."""
        line = line.rstrip()
        if not line:
            return
        self._last.append(line)
        found = self._reader.read(line)
        if found is not None:
            self._at(found)
        elif self._only_line:
            self._doing = _shown(line)
        elif self._is_ours(line):
            self.say(line)
        elif _EVENT.search(line):
            self.say(line.strip())
        elif self._is_new_trouble(line):
            self.say(_cut(_PLACE.sub("", line), self._width()))
        elif not _DOTS.search(line):
            self._doing = _shown(line)
        self.tick()

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self._clear()
        self._write(f"{printable(line, keep=chr(9))}\n")

    def tick(self) -> None:
        """Draw the line again when it is time."""
        now = self._clock()
        if now >= self._next and _in_foreground(self._stream):
            self._next = now + _PERIOD
            self._draw(self._line())

    def close(self, status: int) -> None:
        """The run has ended: leave the last state, and after a failure its reason."""
        self._clear()
        if self._iteration is not None:
            self._write(f"{fit(self._parts(), self._width())}\n")
        if status not in (0, *_STOPPED):
            self._write("".join(f"{printable(line, keep=chr(9))}\n" for line in self._reason()))

    def has_failed(self) -> bool:
        """Whether the log ends with a reason to fail, for those who cannot see the status."""
        return self._explained or any(_TRACE in line for line in self._last)

    def _at(self, found: Iteration) -> None:
        fresh = self._iteration is None or found.number != self._iteration.number
        if fresh and found.seconds:
            self._times.append(found.seconds)
        # They come after the line of their iteration: until then the last ones hold.
        self._facts.update((name, found.values[name]) for name in OWN if name in found.values)
        values = {**self._facts, **found.values}
        self._iteration, self._doing = Iteration(found.number, found.of, values), ""

    def _is_ours(self, line: str) -> bool:
        """Whether the bridge says it; errors have three parts or more."""
        if line.startswith(_OURS):
            self._in_error = line.startswith(ERROR_PREFIX)
            self._explained |= self._in_error
            return True
        self._in_error &= line.startswith(_PARTS)
        return self._in_error

    def _is_new_trouble(self, line: str) -> bool:
        """Whether the line is a warning or an error that was not shown before."""
        if not _TROUBLE.search(line) or _DOTS.search(line):
            return False
        if line.startswith(" "):  # source code under a warning, and in a traceback
            return False
        kind = _VARIES.sub("", line)
        new = kind not in self._said
        self._said.add(kind)
        return new

    def _reason(self) -> list[str]:
        """The lines of the log that say why the run failed, unless they have been shown."""
        lines = list(self._last)
        traces = [place for place, line in enumerate(lines) if _TRACE in line]
        if traces:
            # Of several ranks that fail alike, and of errors while handling errors, the last.
            return lines[traces[-1] :][:_TRACEBACK]
        return [] if self._explained else lines[-TAIL:]

    def _line(self) -> str:
        if self._iteration is None:
            text = f"{clock_time(self._clock() - self._began)}  {self._doing or 'starting'}"
            return printable(text)[: self._width()]
        return fit(self._parts(), self._width())

    def _parts(self) -> list[tuple[int, str]]:
        """What the line says, in order: (rank of importance, text)."""
        one = self._iteration
        assert one is not None
        parts = [(0, f"iteration {one.number}/{one.of}"), (1, f"loss {one.loss:.4g}")]
        tokens = self._reader.tokens_per_second(one)
        if tokens is not None:
            parts.append((3, f"{short(tokens)} tokens/s"))
        elif one.seconds:
            parts.append((3, f"{one.seconds:.3g} s/iteration"))
        if one.tflops is not None:
            parts.append((4, f"{short(one.tflops * 1e12)}FLOP/s"))
        if one.memory is not None:
            whole = one.values.get(DEVICE_MEMORY)
            text = f"{one.memory:.3g} GB" if whole is None else f"{one.memory:.3g}/{whole:.3g} GB"
            parts.append((5, text))
        left = one.of - one.number
        if left > 0 and self._times:
            seconds = left * sum(self._times) / len(self._times)
            parts.append((2, f"{clock_time(seconds)} left"))
        else:
            parts.append((2, clock_time(self._clock() - self._began)))
        if self._doing:
            parts.append((6, self._doing[:40]))
        return parts

    def _width(self) -> int:
        """Columns that can be written without a line break, as wide as the terminal is now."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError, AttributeError):
            columns = 80
        return max(20, columns or 80) - 1

    def _draw(self, text: str) -> None:
        self._write(f"\r{text}{' ' * (min(self._drawn, self._width()) - len(text))}")
        self._drawn = len(text)

    def _clear(self) -> None:
        if self._drawn:
            self._write(f"\r{' ' * min(self._drawn, self._width())}\r")
            self._drawn = 0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the terminal has gone; the run and its log go on


def fit(parts: list[tuple[int, str]], width: int) -> str:
    """The parts in one line; the least important ones are left out where it is too long."""
    kept = list(parts)
    if len("  ".join(text for _, text in kept)) > width:
        kept[0] = (kept[0][0], kept[0][1].removeprefix("iteration "))
    while len(kept) > 1 and len("  ".join(text for _, text in kept)) > width:
        kept.remove(max(kept))
    return printable("  ".join(text for _, text in kept))[:width]


def _shown(line: str) -> str:
    """What the line says of a log line; letters that take two columns would break it."""
    return line.strip(" ->|") if line.isascii() else ""


def _cut(text: str, width: int) -> str:
    """The beginning of a long line: the log has all of it."""
    return text if len(text) <= width else f"{text[: width - 4]} ..."


def short(number: float) -> str:
    """A count in at most six characters: 950, 12.3k, 4.56M."""
    for letter in ("", "k", "M", " G", " T"):
        if number < 999.5 or letter == " T":
            return f"{number:.0f}" if not letter else f"{number:.3g}{letter}"
        number /= 1000
    raise AssertionError


def clock_time(seconds: float) -> str:
    """As clocks say it: 0:07, 12:30, 1:02:03, 3d 4h."""
    whole = round(seconds)
    if whole >= 48 * 3600:
        return f"{whole // 86400}d {whole % 86400 // 3600}h"
    hours, minutes = divmod(whole // 60, 60)
    tail = f"{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
    return f"{hours}:{tail}" if hours else tail


def _in_foreground(stream: TextIO) -> bool:
    """Whether the terminal shows this program, not the shell that sent it to the background."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return True
