"""Checks of `accel-bridge doctor`: what one is, the machine and the training that it looks at, and
what it finds. Each look goes through :class:`Machine`, so that tests can give another one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.device.backend import Backend, Memory, Probe
from accel_bridge.plugins.installed import identity

if TYPE_CHECKING:
    from accel_bridge.errors import BridgeError


class Verdict(Enum):
    """What a finding means for a training that starts now."""

    OK = "ok"
    #: It starts, but slower, less safely or otherwise than asked for.
    WARNING = "warning"
    #: It would stop, hang, or compute something else.
    FAILS = "would fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    :param what: one sentence, without a full stop.
    :param evidence: what was looked at and what it said, one line each.
    :param next: the command or edit that fixes it; empty for what is well.
    """

    verdict: Verdict
    what: str
    evidence: tuple[str, ...] = ()
    next: str = ""


def ok(what: str, *evidence: str) -> Finding:
    """Something that is well; shown by ``--all``."""
    return Finding(Verdict.OK, what, evidence)


def warning(what: str, *evidence: str, next: str) -> Finding:
    """Training starts, but slower, less safely or otherwise than asked for."""
    return Finding(Verdict.WARNING, what, evidence, next)


def fails(what: str, *evidence: str, next: str) -> Finding:
    """Training would stop, hang, or compute something else."""
    return Finding(Verdict.FAILS, what, evidence, next)


def of_error(error: BridgeError, verdict: Verdict = Verdict.FAILS) -> Finding:
    """An error in three parts, as a finding."""
    return Finding(verdict, error.what.rstrip("."), error.evidence, error.next)


def milder(finding: Finding) -> Finding:
    """The finding as a warning at most."""
    if finding.verdict is Verdict.FAILS:
        return replace(finding, verdict=Verdict.WARNING)
    return finding


_LISTENS: Final = "0A"


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """A training's arguments, as the framework reads them.

    :param by: what read them, e.g. ``megatron-core 0.19.2``.
    :param arguments: by name; plain values only. A name that is not there is not known.
    :param findings: what is wrong with them.
    :param bytes_needed: of each device, by the framework's own estimate; None if it has none.
    """

    by: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    bytes_needed: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A training that would start.

    :param processes: ranks on this machine.
    :param machines: how many.
    :param host: the first machine's name or address, as given to torchrun; None if not given.
    :param port: its port there; None if not given.
    :param script: what would run; None where the framework's arguments alone are given.
    :param parsed: its arguments; None while nobody could read them.
    """

    processes: int = 1
    machines: int = 1
    host: str | None = None
    port: int | None = None
    script: str | None = None
    parsed: ParsedArguments | None = None

    @property
    def ranks(self) -> int:
        """On all machines."""
        return self.processes * self.machines

    def argument(self, name: str, default: Any = None) -> Any:
        """The value of an argument; ``default`` where it is not known or None."""
        found = self.parsed.arguments.get(name) if self.parsed is not None else None
        return default if found is None else found


def _disk(path: Path) -> tuple[int, int]:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _resolve(host: str) -> tuple[str, ...]:
    try:
        return tuple({str(found[4][0]) for found in socket.getaddrinfo(host, None)})
    except OSError:
        return ()


@dataclass(frozen=True, slots=True)
class Machine:
    """What checks look at.

    :param root: root of the file system, for files of the kernel and of drivers.
    :param environ: environment variables.
    :param path: directories in which Python looks for packages; None: as this Python does.
    :param disk: free and total bytes where a path is; raises OSError.
    :param resolve: addresses of a host name; empty where it has none.
    :param access: whether this user may do with a path what a mode of ``os.access`` says.
    :param backend: the backend that a program would get here; None where it would get none.
    :param probe: what that backend found.
    :param memory: of each device that a process may use; empty where nobody knows.
    :param run: the training that would start, if one was named.
    :param seconds: that the user grants each step that takes long; None: as many as usual.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    path: tuple[str, ...] | None = None
    disk: Callable[[Path], tuple[int, int]] = _disk
    resolve: Callable[[str], tuple[str, ...]] = _resolve
    access: Callable[[Path, int], bool] = os.access
    backend: Backend | None = None
    probe: Probe | None = None
    memory: tuple[Memory, ...] = ()
    run: Run | None = None
    seconds: float | None = None

    def patience(self, usual: float) -> float:
        """Seconds that a step may take: the user's, or the usual ones."""
        return usual if self.seconds is None else self.seconds

    def at(self, path: str) -> Path:
        """An absolute path of the machine, below :attr:`root`."""
        return self.root / path.lstrip("/")

    def nearest(self, path: Path) -> Path:
        """A path of the machine, or the nearest directory above it that is there."""
        found = self.at(str(path.absolute()))
        while not found.exists() and found != found.parent:
            found = found.parent
        return found

    def text(self, path: str) -> str:
        """What a file of the machine holds; empty if it cannot be read."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def listening(self) -> set[int]:
        """TCP ports on which a process of this machine listens."""
        ports = set()
        for file in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in self.text(file).splitlines()[1:]:
                words = line.split()
                if len(words) > 3 and words[3] == _LISTENS:
                    ports.add(int(words[1].rpartition(":")[2], 16))
        return ports

    def spec(self, module: str) -> ModuleSpec | None:
        """Where a top-level module would come from; nothing is imported."""
        try:
            if self.path is None:
                return importlib.util.find_spec(module)
            return PathFinder.find_spec(module, list(self.path))
        except (ImportError, ValueError):
            return None

    def directory(self, package: str) -> Path | None:
        """The directory of a package; None where it is not installed."""
        spec = self.spec(package)
        locations = spec.submodule_search_locations if spec is not None else None
        return Path(next(iter(locations))) if locations else None

    def distributions(self) -> Iterator[tuple[str, str, Distribution]]:
        """Name (lower case, with dashes), version and metadata of what is installed.

        Two of one name are both given, the one that an import takes first.
        """
        found = distributions() if self.path is None else distributions(path=list(self.path))
        for distribution in found:
            name, version = identity(distribution)
            yield name.lower().replace("_", "-").replace(".", "-"), version, distribution

    def version(self, distribution: str) -> str | None:
        """Version of an installed distribution; None where it is not installed."""
        return next(
            (found for name, found, _ in self.distributions() if name == distribution), None
        )

    def program(self, name: str) -> str | None:
        """Where a program is, by the machine's ``PATH``."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def output(self, *words: str, seconds: float = 10.0) -> tuple[int | None, str]:
        """Exit status and what a program printed, stderr after stdout.

        The status is None where it did not end in time or could not be started; the text then
        says so.
        """
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                env=dict(self.environ),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"no answer in {seconds:g} s"
        except OSError as error:
            return None, str(error)
        return done.returncode, done.stdout + done.stderr

    def python(self, *words: str, seconds: float = 10.0) -> tuple[int | None, str]:
        """:meth:`output` of this Python."""
        return self.output(sys.executable, *words, seconds=seconds)


_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a machine. It is asked in a process of its own, with a time limit.

    :param name: lower case, digits and dashes; unique.
    :param subject: heading under which it is listed, e.g. ``PyTorch``.
    :param looks_for: the fault that it looks for, in one line.
    :param run: gives the findings. What it raises is shown, and stops no other check.
    :param with_run: whether it needs a training command (``doctor -- ARGUMENTS``).
    :param seconds: that it may take.
    :raises ValueError: ``name`` does not look like one.
    """

    name: str
    subject: str
    looks_for: str
    run: Callable[[Machine], Iterable[Finding]]
    with_run: bool = False
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot be the name of a check")
