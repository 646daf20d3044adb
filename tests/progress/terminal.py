"""A pseudo terminal for tests: what a program shows on it, row by row."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shown:
    """What a program left on its terminal.

    :param status: its exit status, as shells count it.
    :param text: everything that it wrote.
    """

    status: int
    text: str

    @property
    def rows(self) -> list[str]:
        """What each row shows at last."""
        return rows_of(self.text)[0]

    @property
    def moving(self) -> list[str]:
        """All that was erased."""
        return rows_of(self.text)[1]


def rows_of(text: str) -> tuple[list[str], list[str]]:
    """What a terminal shows of ``text`` row by row, and what was erased."""
    rows, erased, at = [""], list[str](), 0
    for code, letters in re.findall(r"(\x1b\[[?\d;]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", text):
        if code == "\n":
            at += 1
            rows += [""] * (at == len(rows))
        elif code.endswith("A"):
            at -= 1
        elif code.endswith("K"):
            erased += [rows[at]] * bool(rows[at])
            rows[at] = ""
        rows[at] += letters
    return [row.rstrip() for row in rows], erased


def run(
    command: Sequence[str],
    directory: Path,
    *,
    columns: int = 80,
    environ: Mapping[str, str] | None = None,
    until: str = "",
    key: bytes = b"",
    number: int = 0,
) -> Shown:
    """Run ``command`` on a terminal.

    :param until: when this has been shown, ``key`` is typed, or the signal ``number`` is sent to
        the command's first process.
    """
    pid, terminal = pty.fork()
    if pid == 0:  # the size first: the command may ask at once
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.chdir(directory)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        os.execvpe(command[0], list(command), {**kept, **(environ or {})})
    shown, done, end = b"", not until, time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                new = os.read(terminal, 1 << 16)
            except OSError:  # all who had it have ended
                break
            if not new:
                break
            shown += new
        if not done and until.encode() in shown:
            done = True
            if key:
                os.write(terminal, key)
            if number:
                os.kill(pid, number)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return Shown(128 - status if status < 0 else status, shown.decode(errors="replace"))
