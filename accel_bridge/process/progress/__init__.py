"""Runs a command into a log file and shows it on the terminal.

The file itself is the command's output: nothing waits for who watches, and nothing is lost when the
watching ends. This process follows the file, and ends as the command does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from accel_bridge.errors import ERROR_PREFIX
from accel_bridge.process import endings
from accel_bridge.process import log as bridge_log
from accel_bridge.process.environment import PROGRESS
from accel_bridge.process.outputs import OutputError, mapped
from accel_bridge.process.progress.lines import FACTS

if TYPE_CHECKING:
    from accel_bridge.process.progress.screen import Screen

# The lines of a file that grows.

#: Seconds between two looks at a log.
LOOK: Final = 0.1
#: Seconds in which what outlives a command for a moment says its last words.
SETTLE: Final = 0.2
#: Bytes that are read at once, and the longest line that is waited for.
_CHUNK: Final = 1 << 16


class Lines:
    """Reads what has been added to a file since the last time.

    :param file: open for reading, at its beginning or wherever reading should begin.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rest = b""

    def new(self, last: bool = False) -> list[str]:
        """The lines that are complete now; with ``last`` the incomplete one too."""
        found: list[str] = []
        while data := self._file.read(_CHUNK):
            *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
            found += [line.decode(errors="replace") for line in whole]
            if len(self._rest) > _CHUNK:  # no line of a log is so long
                self._rest = b""
        if last and self._rest:
            found.append(self._rest.decode(errors="replace"))
            self._rest = b""
        return found


# The file that takes what a training run says; no file that is there is ever touched.

#: Beginning and end of a log's name.
PREFIX, SUFFIX = "train-", ".log"
#: Logs of one second in one directory: several machines may share it.
_MOST: Final = 10_000


def log_directory(argv: Sequence[str]) -> Path:
    """The directory of Megatron's ``--save`` among ``argv``, else the current one."""
    directory = ""
    for place, word in enumerate(argv):
        if word == "--save":
            directory = "".join(argv[place + 1 : place + 2])
        elif word.startswith("--save="):
            directory = word.partition("=")[2]
    return Path(directory or ".")


def new_log(directory: Path) -> tuple[Path, BinaryIO]:
    """A new file ``train-DATE-TIME.log`` in ``directory``, which is made if it is not there.

    :returns: its path, and the file, open for appending.
    :raises OutputError: no file can be made there.
    """
    stem = f"{PREFIX}{time.strftime('%Y%m%d-%H%M%S')}"
    with mapped(directory, "the log"):
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST):
            path = directory / (f"{stem}{SUFFIX}" if number == 1 else f"{stem}-{number}{SUFFIX}")
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                return path, os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
            except FileExistsError:
                continue
    raise OutputError(
        "There is no free name for a log.",
        evidence=f"{directory} holds {_MOST} logs of this second",
        next="remove old logs",
    )


def is_wanted(default: bool) -> bool:
    """Whether a run is watched: on a terminal only, and as ``ACCEL_BRIDGE_PROGRESS`` says.

    :param default: what a command does where the variable says nothing.
    :raises EnvironmentVariableError: the variable means nothing.
    """
    choice = PROGRESS.read()
    wanted = default if choice is None else choice
    return wanted and all(stream.isatty() for stream in (sys.stdout, sys.stderr))


def run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run ``command`` to its end, its output in a new log; its exit status.

    The log is in the directory of the command's ``--save``, else in the current one. Where neither
    takes a file, the command runs with the terminal as its output.
    """
    environ = dict(os.environ if environ is None else environ)
    try:
        path, log = new_log(log_directory(command))
    except OutputError as error:
        try:
            path, log = new_log(Path())
        except OutputError:
            bridge_log.warn(f"no progress line: {error.what} ({error.evidence[0]})")
            return subprocess.run(command, env=environ, check=False).returncode
        bridge_log.warn(f"{error.what} The log is in the current directory instead")
    from accel_bridge.process.progress.screen import Screen  # and rich, which takes a moment

    screen = Screen()
    screen.say(f"{bridge_log.PREFIX} log: {path}")
    with endings.signals_kept() as prepare:
        with log:
            child = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**environ, FACTS: "1"},
                preexec_fn=prepare,
            )
        with path.open("rb") as written:
            ended = _follow(child, Lines(written), screen)
    status = 128 - ended if ended < 0 else ended
    screen.close(status)
    if status != 0:
        screen.say(f"{bridge_log.PREFIX} everything that was said: {path}")
    killed = endings.of_ended("the command", ended, child.pid)
    if killed is not None:
        for line in f"{ERROR_PREFIX} {killed}".splitlines():
            screen.say(line)
    return status


def _follow(child: subprocess.Popen[bytes], lines: Lines, screen: Screen) -> int:
    """Show the log until the child ends; its status."""
    while (status := endings.wait(child, LOOK)) is None:
        for line in lines.new():
            screen.feed(line)
        screen.tick()
    time.sleep(SETTLE)
    for line in lines.new(last=True):
        screen.feed(line)
    return status
