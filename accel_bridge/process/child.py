"""Child processes: what a command must inherit for its Pythons to activate the bridge, and the
watcher that notices those which use PyTorch and were not reached.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from accel_bridge.process import log
from accel_bridge.process.endings import ASKED
from accel_bridge.process.environment import AUTO

#: Holds ``sitecustomize`` and the hook that it arms; nothing else may be importable from there.
BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"
_HOOK: Final = "accel_bridge_hook"
_PYTHONPATH: Final = "PYTHONPATH"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with what lets every Python that inherits it activate the bridge.

    The directory on the path reaches a Python without accel_bridge too, which then says so. The
    variable reaches one that ignores the path (``-I``, ``-E``), where accel_bridge is installed.
    """
    before = environ.get(_PYTHONPATH, "")
    path = before
    if str(BOOTSTRAP) not in before.split(os.pathsep):
        path = os.pathsep.join([str(BOOTSTRAP), before]) if before else str(BOOTSTRAP)
    return {log.SAID: "", AUTO.name: "1", **environ, _PYTHONPATH: path}


def stand_down() -> None:
    """Activate nothing by itself in this process: it is a program of accel_bridge."""
    name = _HOOK if _HOOK in sys.modules else f"accel_bridge.process.bootstrap.{_HOOK}"
    import_module(name).stand_down()


#: The watcher's socket and the word that each message begins with, for the hook.
WATCH: Final = "_ACCEL_BRIDGE_WATCH"
#: In place of a process id: no command runs.
_NEVER_RAN: Final = 0
#: Seconds between two looks: the first, and the longest.
FIRST, LONGEST = 0.1, 1.0
#: In the path of each of PyTorch's own libraries.
_LIBRARY: Final = "/libtorch"
#: Options of Python that take a value, as `-X` does.
_TAKE_VALUE: Final = "cmWX"
#: Options of Python that keep the hook away, and what they do. The first two do so only where
#: accel_bridge is not installed.
_IGNORES: Final = "ignores PYTHONPATH; install accel_bridge where that Python finds its packages"
_KEEP_AWAY: Final = {
    "I": f"-I, which {_IGNORES}",
    "E": f"-E, which {_IGNORES}",
    "S": "-S, which leaves out sitecustomize",
}


def start(at_end: Callable[[], None] = lambda: None) -> str:
    """Start the watcher of this process, which then becomes the command.

    It is no child of this process: a command may wait for all of its children.

    :param at_end: called in the watcher when the command has ended.
    :returns: the value of :data:`WATCH` for the command.
    """
    word = secrets.token_hex(8)
    root, command = os.getpid(), os.pidfd_open(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hooks:
        place = _bind(hooks)
        hooks.setblocking(False)
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                _leave_the_terminal()
                with contextlib.suppress(Exception):  # a watcher must disturb nobody
                    _accompany(Tree(root), _Messages(hooks, word), command, at_end)
                if not place.startswith("@"):
                    shutil.rmtree(os.path.dirname(place), ignore_errors=True)
            os._exit(0)
        os.waitpid(child, 0)
    os.close(command)
    return f"{word} {place}"


def _bind(hooks: socket.socket) -> str:
    """Give the socket an address that only those know who inherit it.

    A file is reached from other network namespaces too (``unshare -n``), an abstract name (``@``)
    is not: that is for machines without a directory that takes a socket.
    """
    for directory in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/dev/shm"):
        if directory and os.path.isdir(directory):
            with contextlib.suppress(OSError):  # full, read-only, or too long a path
                own = tempfile.mkdtemp(prefix="accel-bridge-", dir=directory)
                try:
                    path = f"{own}/{secrets.token_hex(8)}"
                    hooks.bind(path)
                    # A child may be another user's; nobody can list what is there.
                    os.chmod(path, 0o777)
                    os.chmod(own, 0o711)
                except OSError:
                    shutil.rmtree(own, ignore_errors=True)
                    raise
                return path
    name = f"accel-bridge-{secrets.token_hex(8)}"
    hooks.bind("\0" + name)
    return f"@{name}"


def dismiss(value: str) -> None:
    """Let the watcher end silently: the command could not be started."""
    word, _, place = value.partition(" ")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.sendto(f"{word} {_NEVER_RAN}".encode(), place.replace("@", "\0", 1))


class _Messages:
    """What hooks say; whatever does not begin with the word is nobody's of the command.

    :param word: of :func:`start`.
    """

    def __init__(self, hooks: socket.socket, word: str) -> None:
        self.socket = hooks
        self._word = word.encode()

    def read(self) -> Iterator[int]:
        """The process ids that came."""
        while True:
            try:
                text = self.socket.recv(64)
            except BlockingIOError:
                return
            word, _, number = text.partition(b" ")
            if secrets.compare_digest(word, self._word) and number.isdigit():
                yield int(number)


def _leave_the_terminal() -> None:
    """Let Ctrl-C, and who reads or writes the command's pipes, concern the command alone."""
    os.setsid()
    for number in ASKED:
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)


def _accompany(tree: Tree, hooks: _Messages, command: int, at_end: Callable[[], None]) -> None:
    """Look and listen until the command ends, then say what was never reached."""
    wait, anything = FIRST, False
    listening: list[socket.socket | int] = [hooks.socket, command]
    while True:
        ready, _, _ = select.select(listening, [], [], wait)
        for number in hooks.read():
            if number == _NEVER_RAN:
                return
            tree.reached(number)
            anything = True
        for pid in tree.unreached():
            log.warn(tree.describe(pid))
            anything = True
        if command in ready:
            break
        wait = min(wait * 1.5, LONGEST)
    if not anything:
        log.warn(
            "the bridge was not needed: no Python that this command started imported PyTorch or "
            "Megatron (start the bridge inside what runs in a container, on another machine or in "
            "a service)"
        )
    at_end()


class Tree:
    """The processes that one process has started, however deep.

    :param root: its id.
    :param proc: where the kernel shows processes.
    """

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._members = {root}
        self._others: set[int] = set()
        self._settled: set[int] = set()
        self._images: set[int] = set()

    def reached(self, pid: int) -> None:
        """The hook runs in ``pid``, and so in its forks."""
        self._settled.add(pid)
        self._images.add(self._stat(pid)[1])

    def unreached(self) -> Iterator[int]:
        """Members that use PyTorch without the hook; each is given once."""
        self._grow()
        for pid in sorted(self._members - self._settled):
            if not self._uses_torch(pid):
                continue
            self._settled.add(pid)
            image = self._stat(pid)[1]
            if image and image not in self._images:
                self._images.add(image)  # its forks are as it is
                yield pid

    def describe(self, pid: int) -> str:
        """One line: which process it is, and why the hook does not run in it."""
        argv = self._read(pid, "cmdline").rstrip("\0").split("\0")
        environ = dict(
            entry.partition("=")[::2] for entry in self._read(pid, "environ").split("\0")
        )
        command = " ".join(argv)
        shown = command if len(command) <= 120 else f"{command[:117]}..."
        return f"process {pid} uses PyTorch without the bridge: {_why(argv, environ)} ({shown})"

    def _grow(self) -> None:
        """Take in the new processes whose parents are members."""
        running = {int(entry) for entry in os.listdir(self._proc) if entry.isdigit()}
        self._members &= running
        self._settled &= running
        self._others &= running
        parents = {pid: self._stat(pid)[0] for pid in running - self._members - self._others}
        while children := {pid for pid, parent in parents.items() if parent in self._members}:
            self._members |= children
            for pid in children:
                del parents[pid]
        self._others |= parents.keys()

    def _stat(self, pid: int) -> tuple[int, int]:
        """(the parent's id, where the stack starts), zeros where it has ended.

        Only forks share that address: the kernel draws it for every program that is started.
        """
        fields = self._read(pid, "stat").rpartition(")")[2].split()
        return (int(fields[1]), int(fields[25])) if len(fields) > 25 else (0, 0)

    def _uses_torch(self, pid: int) -> bool:
        try:
            program = os.readlink(self._proc / str(pid) / "exe")
        except OSError:
            return False
        return "python" in os.path.basename(program) and _LIBRARY in self._read(pid, "maps")

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""


def _why(argv: Sequence[str], environ: dict[str, str]) -> str:
    for option in _options(argv):
        if option in _KEEP_AWAY:
            return f"it was started with {_KEEP_AWAY[option]}"
    if str(BOOTSTRAP) not in environ.get("PYTHONPATH", "").split(os.pathsep):
        cleared = "PYTHONPATH" if AUTO.name in environ else "the environment"
        return f"what started it had cleared {cleared}"
    return "another sitecustomize stands before accel_bridge's on its PYTHONPATH"


def _options(argv: Sequence[str]) -> Iterator[str]:
    """The one-letter options of a Python's command line, up to its program."""
    rest = iter(argv[1:])
    for word in rest:
        if not word.startswith("-") or word == "-":
            return
        if word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], start=2):
            yield letter
            if letter in _TAKE_VALUE:
                if letter in "cm":
                    return
                if place == len(word):
                    next(rest, None)
                break
