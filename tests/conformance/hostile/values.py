"""Bad values by kind of slot: a path to be written, one to be read, a number, a word."""

from __future__ import annotations

import gzip
import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.hostile.case import Prepare, nothing


@dataclass(frozen=True)
class Value:
    """A bad value of one slot.

    :param name: what is bad about it.
    :param text: as it stands on the command line.
    :param refused: whether a command must refuse it; None where it may take it.
    :param prepare: makes what it names.
    :param mounts: as those of a case.
    """

    name: str
    text: str
    refused: bool | None = True
    prepare: Prepare = nothing
    mounts: str = ""


def full(place: str) -> str:
    """Mounts a file system that is full, for a case's command alone."""
    fill = f"head -c 1M /dev/zero > {place}/full 2>/dev/null || true"
    return f"mkdir -p {place}; mount -t tmpfs -o size=4k tmpfs {place}; {fill}"


def _write(name: str, data: bytes) -> Prepare:
    return lambda directory: (directory / name).write_bytes(data) and None


def _link(name: str, target: str) -> Prepare:
    return lambda directory: (directory / name).symlink_to(target)


def _link_each_other(directory: Path) -> None:
    _link("l1", "l2")(directory)
    _link("l2", "l1")(directory)


def _hard_link(name: str, target: str) -> Prepare:
    return lambda directory: (directory / name).hardlink_to(directory / target)


def _socket(name: str) -> Prepare:
    def make(directory: Path) -> None:
        here = os.open(directory, os.O_RDONLY)  # its own name may be too long for an address
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{name}")
        os.close(here)

    return make


def _sparse(name: str) -> Prepare:
    def make(directory: Path) -> None:
        with (directory / name).open("wb") as file:
            file.truncate(1 << 40)

    return make


#: Places where no file can be, whatever the command.
NO_PLACE: Final = (
    Value("below a file", "notes.txt/x"),
    Value("far below a file", "notes.txt/a/b/c"),
    Value("a name too long", "n" * 300),
    Value("a path too long", "d/" * 3000 + "x"),
    Value("a link to itself", "loop", prepare=_link("loop", "loop")),
    Value("below a link to itself", "loop/x", prepare=_link("loop", "loop")),
    Value("two links to each other", "l1", prepare=_link_each_other),
    Value("in /proc", "/proc/no_such_file"),
    Value("in /sys", "/sys/no_such_file"),
    Value("a full disk", "full-disk/x", mounts=full("full-disk")),
    Value("empty", ""),
)  # fmt: skip
#: Files that must not become output.
NO_FILE: Final = (
    Value("a directory", "photos"),
    Value("the directory itself", "."),
    Value("the directory above", ".."),
    Value("the root", "/"),
    Value("a directory with a slash", "photos/"),
    Value("a new name with a slash", "new/", None),
    Value("a link into nowhere", "away", prepare=_link("away", "no_such/x")),
    Value("a link to a directory", "way", prepare=_link("way", "photos")),
    Value("a pipe", "pipe", prepare=lambda directory: os.mkfifo(directory / "pipe")),
    Value("a socket", "socket", prepare=_socket("socket")),
    Value("a device that is full", "/dev/full"),
    Value("somebody's text", "notes.txt"),
    Value("somebody's picture", "photos/one.png"),
    Value("a link to somebody's file", "way", prepare=_link("way", "notes.txt")),
    Value("a hard link to somebody's file", "hard", prepare=_hard_link("hard", "notes.txt")),
)
#: Names that look odd and are right.
ODD_NAMES: Final = (
    Value("a name with a newline", "a\nb", None),
    Value("a name that acts on a terminal", "\x1b]0;x\x07\x1b[2J", None),
    Value("a name that is no text", os.fsdecode(b"\xff\xfe"), None),
    Value("a name with a space", " a b ", None),
    Value("a name of three scripts", "数据-данные-🙂", None),
    Value("a name that turns the text around", "a\u202eb", None),
    Value("a pattern", "*?[a]", None),
    Value("a variable", "$HOME", None),
    Value("a home", "~/nobody", None),
    Value("an option", "--help-me", None),
    Value("a percent sign", "%s%d%", None),
    Value("braces", "{0}{x!r}", None),
)
#: Inputs that cannot be read.
NOT_READABLE: Final = (
    Value("not there", "no_such"),
    Value("below a file", "notes.txt/x"),
    Value("a name too long", "n" * 300),
    Value("a link to itself", "loop", prepare=_link("loop", "loop")),
    Value("a link into nowhere", "away", prepare=_link("away", "no_such/x")),
    Value("memory that nobody may read", "/proc/self/mem"),
    Value("a socket", "socket", prepare=_socket("socket")),
    Value("empty", ""),
)
_SOURCE: Final = random.Random(20)
#: Contents that are not what any command reads.
CONTENTS: Final = {
    "nothing": b"",
    "one byte": b"\0",
    "bytes at random": _SOURCE.randbytes(5000),
    "zeros": bytes(4096),
    "a picture": b"\x89PNG\r\n\x1a\n" + _SOURCE.randbytes(400),
    "a program": b"\x7fELF\x02\x01\x01" + bytes(400),
    "a page": b"<!DOCTYPE html><html><body>404</body></html>\n",
    "UTF-16": '{"text": "1 2 3"}\n'.encode("utf-16"),
    "Latin-1": '{"text": "\u00e9\u00e8"}\n'.encode("latin-1"),
    "JSON that is cut": b'{"text": "1 2 3',
    "JSON that is deep": b'{"text": ' + b"[" * 100_000,
    "a JSON number": b"17\n",
    "a JSON number of many digits": b'{"text": ' + b"9" * 100_000 + b"}\n",
    "a JSON list": b"[1, 2, 3]\n",
    "a key that is missing": b'{"txt": "1 2"}\n',
    "a value of another type": b'{"text": {"a": 1}}\n',
    "an archive that is cut": gzip.compress(b'{"text": "1 2 3"}\n' * 99)[:40],
    "a line that acts on a terminal": b"\x1b]0;x\x07\x1b[2J\x1b[31m" * 9 + b"\n",
    "a magic of Parquet": b"PAR1" + bytes(40) + b"PAR1",
    "a magic of an index": b"MMIDIDX\0\0" + b"\xff" * 60,
    "a magic of a recording": b'ACCEL_BRIDGE recording\n{"format": 1}\n',
}


def strange_contents(suffix: str) -> Iterator[Value]:
    """Files of a right name whose content is something else."""
    for name, data in CONTENTS.items():
        yield Value(f"a file: {name}", f"strange{suffix}", True, _write(f"strange{suffix}", data))


#: A file with holes, as large as a disk.
SPARSE: Final = Value("a terabyte of zeros", "sparse", True, _sparse("sparse"))

_NUMBERS: Final = (
    *("", " ", "-1", "0", "-0", "+1", "1.5", "-3.25", "1e3", "1e400", "-1e400", "nan", "inf"),
    *("0x10", "1_000", "1,000", " 7 ", "7\n", "\u0667", "\u00bd", "\uff11\uff12", "1;ls", "$(id)"),
    *("seven", "true", "None", "--", "-", "1e-9", str(2**31), str(2**63), str(2**64), "9" * 400),
    *("9" * 5000, "-9223372036854775809", "1/2", "10%", "\x1b[31m1", "0b1", "1j", "007"),
)  # fmt: skip


def numbers(
    least: float, most: float, *, whole: bool = True, capped: bool = False
) -> Iterator[Value]:
    """Texts for an option that takes a number in a range.

    :param capped: more than ``most`` may be taken, too.
    """
    plain = re.compile(r"[+-]?\d+" if whole else r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
    for text in _NUMBERS:
        # Other spellings that Python reads, of a number in range, are taken or refused.
        wrong = _is_wrong(text, plain, least, most, whole)
        beyond = capped and wrong and not _is_wrong(text, plain, least, float("inf"), whole)
        yield Value(f"{text[:12]!r}", text, None if beyond else wrong)


def _is_wrong(
    text: str, plain: re.Pattern[str], least: float, most: float, whole: bool
) -> bool | None:
    read: Callable[[str], float] = int if whole else float
    try:
        value = read(text)
    except ValueError:
        return True
    if not least <= value <= most:
        return True
    return False if plain.fullmatch(text) else None


def misspelt(word: str) -> Iterator[Value]:
    """Texts for an option that takes one of some words."""
    for text in (word[:-1], word + "x", f"{word},{word}", word[::-1], "", "\x1b[31m"):
        if text != word:
            yield Value(repr(text), text)
    yield Value("a space behind", f"{word} ", None)
