"""Files that a command writes: never over what it neither made nor was given as its output."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from accel_bridge._errors import BridgeError

#: How much of a file is looked at for the mark of its maker.
_HEAD: Final = 1000


class OutputError(BridgeError):
    """A file cannot be written, or is somebody else's."""


def check_output(path: Path, option: str, mark: bytes, others: Iterable[Path] = ()) -> None:
    """Stop before the work where its result could not be written.

    :param option: the option that names the file.
    :param mark: what stands in the first kilobyte of a file that this command made earlier, and
        may replace.
    :param others: inputs, and other outputs, of the same command.
    :raises OutputError: it is a folder, somebody else's file, one of ``others``, or in a folder
        that is missing or cannot be written.
    """
    try:
        for other in others:
            if _is_same(path, other):
                raise _refused(path, option, f"it is {other}, which this command uses too")
        target = path.resolve(strict=False)
        if not os.path.lexists(target):
            _check_folder(target, option, path)
            return
        kind = target.stat().st_mode
        if stat.S_ISCHR(kind):  # /dev/null, /dev/stdout
            return
        if not stat.S_ISREG(kind):
            found = "a folder" if stat.S_ISDIR(kind) else "no regular file"
            raise _unwritable(path, option, f"it is {found}")
        with target.open("rb") as file:
            head = file.read(_HEAD)
        if head and mark not in head:
            raise _refused(path, option, f"it exists, and begins with {head[:20]!r}")
        _check_folder(target, option, path)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unwritable(path, option, str(error)) from error


def write_output(
    path: Path, data: bytes, option: str, mark: bytes, others: Iterable[Path] = ()
) -> None:
    """Write a file, whole or not at all, after the checks of :func:`check_output`.

    :raises OutputError: as there, or the file system is full.
    """
    check_output(path, option, mark, others)
    partial = None
    try:
        target = path.resolve(strict=False)
        if os.path.lexists(target) and not target.is_file():
            target.write_bytes(data)
            return
        handle, partial = tempfile.mkstemp(prefix=".accel-bridge-", dir=target.parent)
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, target)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        raise _unwritable(path, option, str(error)) from error


def _is_same(path: Path, other: Path) -> bool:
    if path.resolve(strict=False) == other.resolve(strict=False):
        return True
    return path.exists() and other.exists() and path.samefile(other)


def _check_folder(target: Path, option: str, path: Path) -> None:
    if not target.parent.is_dir():
        raise _unwritable(path, option, f"{target.parent} is no folder")
    if not os.access(target.parent, os.W_OK):
        raise _unwritable(path, option, f"the folder {target.parent} cannot be written")
    if len(os.fsencode(target.name)) > os.pathconf(target.parent, "PC_NAME_MAX"):
        raise _unwritable(path, option, "its name is too long for the file system")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: Path, option: str, evidence: str) -> OutputError:
    return OutputError(
        f"{path} cannot be written.",
        evidence=evidence,
        next=f"give {option} a file in a folder that exists, can be written and has room",
    )


def _refused(path: Path, option: str, evidence: str) -> OutputError:
    return OutputError(
        f"{path} is not a file that {option} may replace.",
        evidence=evidence,
        next=f"give {option} the name of a new file, or remove that one",
    )
