"""Runs a case in a directory of its own, and says how it was answered."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final

from conformance.hostile.case import END_SECONDS, Case

#: A file beside the directory of every case: nothing may touch it.
PRECIOUS: Final = "precious.txt"
#: By how much everything may take longer on a machine that does much else.
PATIENCE: Final = float(os.environ.get("HOSTILE_PATIENCE", "1"))
_BYTES_SHOWN: Final = 200_000
_PARTS: Final = ("accel-bridge: error:", "  evidence: ", "  next:     ")
#: What a terminal would obey: all controls but tab, newline and the progress's carriage return.
_ACTS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")
#: Ctrl-C before the first line of a command's own module: no program of Python can answer that.
_STARTING: Final = re.compile(
    r"(?s)(?:init_import_site|in _get_module_details).*KeyboardInterrupt|init_import_site"
)


class Answer(Enum):
    """How a command answers."""

    REFUSED = "refused in three parts"
    ACCEPTED = "accepted, and it may be"
    WRONGLY_ACCEPTED = "exit status 0 where it must be refused"
    WRONGLY_REFUSED = "refused although it is right"
    BARE = "a failure without three parts"
    TRACEBACK = "raw traceback"
    CRASH = "ended by a signal"
    HANG = "does not end, or leaves a process behind"
    LOSS = "a file that it did not make has changed"
    UNSAFE = "control characters of the input reach the terminal"
    MEMORY = "too much memory"

    @property
    def good(self) -> bool:
        """Whether nothing is wrong with it."""
        return self in (Answer.REFUSED, Answer.ACCEPTED)


@dataclass(frozen=True)
class Result:
    """The answer to one case, with what shows it."""

    case: Case
    answer: Answer
    status: int | None
    seconds: float
    shown: str
    details: str = ""


def fingerprint(directory: Path, outputs: frozenset[Path] = frozenset()) -> dict[str, str]:
    """Path -> what is there, for everything below ``directory`` but the outputs."""
    found: dict[str, str] = {}
    for root, directories, files in os.walk(directory):
        here = Path(root)
        directories[:] = [name for name in directories if here / name not in outputs]
        for name in (*directories, *files):
            path = here / name
            if path in outputs:
                continue
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[str(path)] = f"link to {os.readlink(path)}"
            elif stat.S_ISREG(mode):
                found[str(path)] = f"{mode:o} {_digest(path)}"
            else:
                found[str(path)] = f"{stat.S_IFMT(mode):o}"
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > 1 << 28:  # one with holes
            return f"{size} bytes"
        return hashlib.sha256(file.read()).hexdigest()


def judge(case: Case, directory: Path, python: str = sys.executable) -> Result:
    """Run ``case`` in ``directory``, which is furnished and prepared."""
    outputs = frozenset(directory / name for name in case.outputs)
    before = fingerprint(directory.parent, outputs)
    began = time.monotonic()
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        pool.submit(_act, case, directory, ended)
        runs = [pool.submit(_run, case, directory, python) for _ in range(1 + case.twice)]
        try:
            (status, shown, left, memory), *others = [run.result() for run in runs]
        finally:
            ended.set()
    for other in others:  # it must be answered well, too
        answer, details = _answer(case, *other[:2])
        if not answer.good:
            return Result(case, answer, other[0], 0, other[1], f"the other one: {details}")
    seconds = time.monotonic() - began
    after = fingerprint(directory.parent, outputs)
    changed = [path for path, what in before.items() if after.get(path) != what]
    answer, details = _answer(case, status, shown)
    if changed:
        answer, details = Answer.LOSS, ", ".join(changed[:4])
    elif status is None or left:
        answer, details = Answer.HANG, f"left behind: {left}" if left else ""
    elif case.memory is not None and memory > case.memory:
        answer, details = Answer.MEMORY, f"{memory / 1e6:.0f} MB"
    return Result(case, answer, status, seconds, shown, details)


def _answer(case: Case, status: int | None, shown: str) -> tuple[Answer, str]:
    """What exit status and messages say."""
    if case.interrupt and case.signal == signal.SIGINT and _STARTING.search(shown):
        return Answer.REFUSED, "while Python itself started"
    if "Traceback (most recent call last)" in shown:
        return Answer.TRACEBACK, ""
    if acts := _ACTS.search(shown.replace("\x1b[K", "")):
        return Answer.UNSAFE, repr(shown[max(0, acts.start() - 30) : acts.end() + 20])
    if status == 0:
        return (Answer.WRONGLY_ACCEPTED if case.refused else Answer.ACCEPTED), ""
    if case.interrupt and status in (128 + case.signal, -case.signal):
        return Answer.REFUSED, ""
    if status is not None and (status < 0 or status > 130):
        return Answer.CRASH, f"status {status}"
    if status == 1 and case.verdict and re.search(case.verdict, shown):
        return Answer.REFUSED, ""
    if case.refused is False:
        return Answer.WRONGLY_REFUSED, f"status {status}"
    # Nobody can read them where standard error leads nowhere.
    if case.stderr == "pipe" and not all(part in shown for part in _PARTS):
        return Answer.BARE, f"status {status}"
    return Answer.REFUSED, ""


def _run(case: Case, directory: Path, python: str) -> tuple[int | None, str, list[int], int]:
    """(exit status, what it printed, processes left behind, peak memory in bytes)."""
    mark = f"HOSTILE_CASE={directory}:{threading.get_ident()}"
    environ = _environ(case.environ) | dict([mark.split("=", 1)])
    # What runs the command where its file systems are its own.
    within = ["unshare", "-m", "sh", "-ec", f'{case.mounts}; cd "$PWD"; exec "$@"', "sh"]
    with tempfile.TemporaryFile() as output:
        with _streams(case, output) as streams:
            process = subprocess.Popen(
                [*(within if case.mounts else ()), python, "-m", *case.words],
                cwd=directory,
                env=environ,
                start_new_session=True,
                preexec_fn=_close(case),
                **streams,
            )
            if isinstance(case.stdin, bytes) and process.stdin is not None:
                with contextlib.suppress(OSError), process.stdin as pipe:
                    pipe.write(case.stdin)  # no more than a pipe holds
            status, memory = _wait(process, case.interrupt or case.seconds * PATIENCE)
            if status is None and case.interrupt:
                if case.signal == signal.SIGINT:
                    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                else:
                    os.kill(process.pid, case.signal)
                status, memory = _wait(process, END_SECONDS * PATIENCE)
            left = _left_behind(mark, 0 if status is None else 5 * PATIENCE)
            for pid in [process.pid, *left] if status is None else left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if status is None:
                process.wait()
        output.seek(0)
        shown = output.read(_BYTES_SHOWN).decode(errors="replace")
    return status, shown, left, memory


def _act(case: Case, directory: Path, ended: threading.Event) -> None:
    """Do what happens while the command runs."""
    while case.meanwhile is not None and not ended.wait(0.01):
        with contextlib.suppress(OSError):
            case.meanwhile(directory)


def _environ(changes: Mapping[str, str | None]) -> dict[str, str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "COLUMNS": "100"}
    for name in [name for name in environ if name.startswith(("ACCEL_BRIDGE_", "PYTEST_"))]:
        del environ[name]
    for name, value in changes.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


@contextlib.contextmanager
def _streams(case: Case, output: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Standard input, output and error of the case; both of the latter end in ``output``."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Any] = {"stdin": subprocess.PIPE if case.stdin != "closed" else None}
        for name in ("stdout", "stderr"):
            where = getattr(case, name)
            if where == "full":
                made[name] = stack.enter_context(open("/dev/full", "wb"))
            elif where == "gone":
                reader, made[name] = os.pipe()
                os.close(reader)
                stack.callback(os.close, made[name])
            else:
                made[name] = output
        if resource.RLIMIT_FSIZE in case.limits:
            # The limit is one of files: what is printed goes through a pipe.
            reader, writer = os.pipe()
            made.update((name, writer) for name in made if made[name] is output)
            copier = threading.Thread(target=_copy, args=(reader, output))
            copier.start()
            stack.callback(copier.join)
            stack.callback(os.close, writer)
        yield made


def _copy(reader: int, output: IO[bytes]) -> None:
    with os.fdopen(reader, "rb") as pipe:
        shutil.copyfileobj(pipe, output)


def _close(case: Case) -> Any:
    """Closes in the child what the case wants closed."""
    closed = [n for n, s in enumerate((case.stdin, case.stdout, case.stderr)) if s == "closed"]

    def close() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for what, most in case.limits.items():
            resource.setrlimit(what, (most, most))
        for number in closed:
            os.close(number)

    return close


def _wait(process: subprocess.Popen[bytes], seconds: float) -> tuple[int | None, int]:
    """(exit status or None, peak memory of it and its children in bytes)."""
    ends = time.monotonic() + seconds
    # A fork begins with its parent's memory, which the kernel counts as its peak.
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    seen = 0
    while time.monotonic() < ends:
        seen = max(seen, _peak(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            counted = usage.ru_maxrss << 10
            return process.returncode, counted if counted > inherited else seen
        time.sleep(0.02)
    return None, 0


def _peak(pid: int) -> int:
    """Peak memory of a process since it began its program, in bytes; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(sizes[0]) << 10 if sizes else 0


def _left_behind(mark: str, seconds: float) -> list[int]:
    """Processes of the case that live on; they have some seconds to end."""
    ends = time.monotonic() + seconds
    while (left := list(_marked(mark.encode()))) and time.monotonic() < ends:
        time.sleep(0.1)
    return left


def _marked(mark: bytes) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    yield int(entry)
