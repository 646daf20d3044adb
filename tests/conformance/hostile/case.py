"""One bad input, and a command that meets it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT
from typing import Final, Literal

#: Makes what a case needs in the directory that it runs in.
Prepare = Callable[[Path], None]
#: Where a stream of a command leads.
Stream = Literal["pipe", "closed", "full", "gone"]

#: Commands without Megatron may take this much memory, in bytes.
MOST_BYTES: Final = 1 << 30
#: What a command reads that asks its standard input.
ROWS: Final = b'{"text": "1 2 3"}\n' * 5
#: Within which a command must end after Ctrl-C, on a machine that does much else besides.
END_SECONDS: Final = 8


def nothing(directory: Path) -> None:
    """A case whose input is in its words alone."""


@dataclass(frozen=True)
class Case:
    """A command line with one bad thing in it.

    :param kind: of input, one of :data:`conformance.hostile.tables.KINDS`.
    :param name: what is bad, to find it again.
    :param words: after ``python -m``; it runs in a directory of :func:`.fixtures.furnish`.
    :param refused: whether it must be refused; None where either answer is right.
    :param prepare: what else the directory holds.
    :param environ: variables beside those of the caller; None takes one away.
    :param stdin: bytes that it reads, or ``closed``.
    :param verdict: what it prints when it ends with status 1, and that is an answer: the thing that
        it looked at is bad.
    :param outputs: files and directories that it may write over; every other file must stay.
    :param seconds: after which it counts as hanging.
    :param interrupt: seconds after which Ctrl-C is typed; it must then end within
        :data:`END_SECONDS`.
    :param signal: what comes then in place of Ctrl-C, to the command's own process alone.
    :param limits: of resources (``resource.RLIMIT_...``), for the command alone.
    :param mounts: shell commands that change file systems for the command alone; they take root.
    :param twice: it runs twice at once; either may be refused because of the other.
    :param meanwhile: is called again and again while it runs.
    :param memory: that it may take, in bytes; None: not looked at.
    :param trains: whether it starts Megatron, from a warm Python.
    :param checkpoint: whether the directory holds one.
    """

    kind: str
    name: str
    words: Sequence[str]
    refused: bool | None = True
    prepare: Prepare = nothing
    environ: Mapping[str, str | None] = field(default_factory=dict)
    stdin: bytes | Literal["closed"] = ROWS
    stdout: Stream = "pipe"
    stderr: Stream = "pipe"
    verdict: str = ""
    outputs: Sequence[str] = ()
    seconds: float = 60
    interrupt: float | None = None
    signal: int = SIGINT
    limits: Mapping[int, int] = field(default_factory=dict)
    mounts: str = ""
    twice: bool = False
    meanwhile: Prepare | None = None
    memory: int | None = MOST_BYTES
    trains: bool = False
    checkpoint: bool = False


#: Makes the cases of one kind; some are drawn with the source.
Maker = Callable[[random.Random], Iterable[Case]]
