"""What a terminal shows of a training run: one line that moves, and what must not be missed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from accel_bridge.errors import ERROR_PREFIX, printable
from accel_bridge.process.log import PREFIX
from accel_bridge.process.progress.lines import DEVICE_MEMORY, OWN, Iteration, LogReader

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
#: What Megatron and its libraries tell their developers: the log has it.
_FOR_DEVELOPERS: Final = re.compile(
    r"deprecat|FutureWarning|is experimental|RerunStateMachine|rerun_state_machine|one_logger"
    r"|Overriding default arguments|path_to_cache is None",
    re.IGNORECASE,
)
#: How lines of loggers begin, before what they say.
_LOGGER: Final = re.compile(r"^(?:[IWE]\d{4} \S+ \d+ \S+\]|[A-Z]+:[\w.]+:|\[[^\]]*\])\s*")
#: Numbers and paths of processes: lines that differ only in them are one warning.
_VARIES: Final = re.compile(r"\d+")
#: What Megatron says when it begins something else than an iteration, and when that has ended.
_STATES: Final = (
    (re.compile(r"\bsaving checkpoint"), "saving"),
    (re.compile(r"\bEvaluating (?:on|iter)\b"), "evaluating"),
    (re.compile(r"successfully saved|validation.* loss at"), "training"),
)
#: Columns of the bar on narrow and wide terminals, and of all that stands beside it.
_BARS: Final = (8, 30)
_BESIDE: Final = 94
_ROOM_FOR_A_BAR: Final = 60
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

    :param console: the terminal; by default standard error's.
    :param clock: seconds.
    :param only_line: show the line alone; somebody else says what went wrong.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        only_line: bool = False,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._only_line = only_line
        self._clock = clock
        self._began = clock()
        self._next = 0.0
        self._reader = LogReader()
        self._iteration: Iteration | None = None
        self._facts: dict[str, float] = {}
        self._doing = ""
        self._state = "starting"
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._said: set[str] = set()
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._explained = False
        self._in_error = False
        self._gone = False
        self._live = Live(
            console=self._console,
            get_renderable=self._line,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def feed(self, line: str) -> None:
        """Take one line of the log; show it if it must not be missed."""
        line = line.rstrip()
        if not line:
            return
        self._last.append(line)
        state = next((to for what, to in _STATES if what.search(line)), self._state)
        if state != self._state:
            self._state, self._next = state, 0.0  # drawn now: what it says may take long
        found = self._reader.read(line)
        if found is not None:
            self._at(found)
        elif self._only_line:
            self._do(line)
        elif self._is_ours(line):
            self.say(line)
        elif _EVENT.search(line):
            self.say(_LOGGER.sub("", line.strip()), cut=True)
        elif self._is_new_trouble(line):
            self.say(_PLACE.sub("", line), cut=True)
        elif not _DOTS.search(line) and not _FOR_DEVELOPERS.search(line):
            self._do(line)
        self.tick()

    def _do(self, line: str) -> None:
        """Note what the run does before its first iteration; rulers are no such thing."""
        doing = _LOGGER.sub("", line).strip(" ->|*")
        self._doing = doing or self._doing

    def say(self, line: str, *, cut: bool = False) -> None:
        """Show a line that stays; a long one may be cut, since the log has all of it."""
        text = Text(printable(line, keep="\t"))
        how: Any = {"no_wrap": True, "overflow": "ellipsis"} if cut else {"soft_wrap": True}
        self._write(lambda: self._console.print(text, **how))

    def tick(self) -> None:
        """Draw the line again when it is time."""
        now = self._clock()
        if now < self._next or not _in_foreground(self._console.file):
            return
        self._next = now + _PERIOD
        self._write(self._draw)

    def close(self, status: int) -> None:
        """The run has ended: leave the last state, and after a failure its reason."""
        self._state = "stopped" if status else "done"
        self._write(self._live.stop)
        if self._iteration is not None:
            self._write(lambda: self._console.print(self._line()))
        if status not in (0, *_STOPPED):
            for line in self._reason():
                self.say(line)

    def _draw(self) -> None:
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor()  # what is killed here must not leave it hidden
        self._live.refresh()

    def _write(self, action: Callable[[], object]) -> None:
        """The terminal may go; the run and its log go on. rich exits where a pipe is broken."""
        if not self._gone:
            try:
                action()
            except (OSError, ValueError, SystemExit):
                self._gone = True

    def _at(self, found: Iteration) -> None:
        fresh = self._iteration is None or found.number != self._iteration.number
        if fresh and found.seconds:
            self._times.append(found.seconds)
        # They come after the line of their iteration: until then the last ones hold.
        self._facts.update((name, found.values[name]) for name in OWN if name in found.values)
        values = {**self._facts, **found.values}
        self._iteration, self._state = Iteration(found.number, found.of, values), "training"

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
        if not _TROUBLE.search(line) or _DOTS.search(line) or _FOR_DEVELOPERS.search(line):
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

    def _line(self) -> Text:
        """The line that moves: what is most important stands first; what has no room is left out.

        Every part is as wide for the next iteration, so that nothing jumps.
        """
        one, width = self._iteration, self._console.width
        if one is None:
            elapsed = clock_time(self._clock() - self._began)
            text = f"starting  {elapsed:>7}  {printable(self._doing)}"
            return Text(text, no_wrap=True, overflow="ellipsis")
        ended = one.number >= one.of and self._state == "training"
        line = Text(f"{'finishing' if ended else self._state:<10}", "bold", no_wrap=True)
        if width >= _ROOM_FOR_A_BAR:
            line.append(" ").append_text(self._bar(one))
        for part in self._parts(one):
            if line.cell_len + 2 + len(part) > width:
                break
            line.append(f"  {part}", "bold" if part.startswith("loss") else "not bold")
        return line

    def _bar(self, one: Iteration) -> Text:
        columns = min(_BARS[1], max(_BARS[0], self._console.width - _BESIDE))
        bar = ProgressBar(total=max(1, one.of), completed=one.number, width=columns)
        parts = self._console.render(bar)
        drawn = Text.assemble(*((part.text, part.style or "") for part in parts))
        drawn.align("left", columns)  # without colours, rich leaves the rest of a bar out
        return drawn

    def _parts(self, one: Iteration) -> Iterator[str]:
        yield f"{one.number:>{len(str(one.of))}}/{one.of}"
        yield f"loss {f'{one.loss:#.4g}':>6}"
        left = one.of - one.number
        if left > 0 and self._times and self._state not in ("done", "stopped"):
            yield f"{clock_time(left * sum(self._times) / len(self._times)):>7} left"
        else:
            yield f"{f'in {clock_time(self._clock() - self._began)}':>12}"
        tokens = self._reader.tokens_per_second(one)
        if tokens is not None:
            yield f"{short(tokens):>6} tokens/s"
        elif one.seconds:
            yield f"{three(one.seconds):>5} s/iteration"
        if one.tflops is not None:
            yield f"{short(one.tflops * 1e12):>6}FLOP/s"
        if one.memory is not None:
            whole = one.values.get(DEVICE_MEMORY)
            of = "" if whole is None else f"/{three(whole)}"
            yield f"{three(one.memory):>5}{of} GB"


def three(number: float) -> str:
    """Three digits, zeros at the end among them: 0.980, 5.70, 412."""
    return f"{number:#.3g}".rstrip(".")


def short(number: float) -> str:
    """A count in at most six characters: 950, 12.3 k, 4.56 M."""
    for letter in ("", " k", " M", " G", " T"):
        if number < 999.5 or letter == " T":
            return f"{number:.0f}" if not letter else f"{three(number)}{letter}"
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


def _in_foreground(stream: IO[str]) -> bool:
    """Whether the terminal shows this program, not the shell that sent it to the background."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return True
