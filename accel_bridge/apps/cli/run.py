"""``accel-bridge run``: any command, unedited, with the bridge active in every Python it starts."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from accel_bridge.bridge.activation import BEFORE
from accel_bridge.errors import BridgeError
from accel_bridge.process import child, log, progress
from accel_bridge.process.child import environment
from accel_bridge.process.environment import PROGRESS
from accel_bridge.process.outputs import check_output
from accel_bridge.process.parser import Parser
from accel_bridge.recording import MAGIC, PLAN, Plan, check_zstd
from accel_bridge.run import main as run_script

USAGE: Final = """\
usage: accel-bridge run [--record FILE] [--progress] [--] COMMAND [ARGUMENTS ...]
       accel-bridge run [--record FILE] [--progress] [-m] SCRIPT [ARGUMENTS ...]

Runs a command with the bridge active in every Python that it starts, however deep: a Python
script, a module (-m), a console program, torchrun, or bash train.sh. A Python that imports
neither PyTorch nor Megatron is left alone.

  --record FILE  write the numbers of each training step to FILE (`accel-bridge parity compare`)
  --progress     on a terminal, show the training as one line that moves; everything that is said
                 goes to a log file, whose name is shown

ACCEL_BRIDGE_AUTO=1 does the same for every command of a shell, a container or a service.
"""

_ATTACH: Final = "accel_bridge.apps.record:attach"
_SCRIPTS: Final = (".py", ".pyc", ".pyw", ".pyz", ".pyzw")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")


class CommandError(BridgeError):
    """The command cannot be started. Its exit statuses are those of shells."""

    def __init__(self, what: str, evidence: str, next: str, exit_code: int = 127) -> None:
        super().__init__(what, evidence=evidence, next=next, exit_code=exit_code)


def main(argv: list[str]) -> int:
    """Become the command, or run the script in this process; the exit status of the latter."""
    _parser().parse_known_args([])  # for shells that ask how the line goes on
    given = argv
    record, shown, argv = _parse(argv)
    if not argv:
        print(USAGE, end="", file=sys.stderr)
        return 2
    if argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if progress.is_wanted(default=shown):
        command = [sys.executable, "-m", "accel_bridge", "run", *given]
        return progress.run(command, {**os.environ, PROGRESS.name: "0"})
    environ = {}
    if record is not None:
        environ = {BEFORE: _ATTACH, PLAN: Plan(out=str(record)).as_word()}
    check = _recorded(record)
    if _is_script(argv[0]):
        os.environ.update(environ)
        try:
            return run_script(argv)
        finally:
            check()
    return _become(argv, {**environment(os.environ), **environ}, check)


def _parser() -> Parser:
    """The options, for completion: only what stands before the command is ours."""
    parser = Parser(prog="accel-bridge run")
    parser.add_argument("--record", metavar="FILE")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("argv", nargs="*")
    return parser


def _parse(argv: list[str]) -> tuple[Path | None, bool, list[str]]:
    """(the file of ``--record``, whether ``--progress`` is there, the command)."""
    record, shown = None, False
    while argv:
        option, equals, value = argv[0].partition("=")
        if argv[0] == "--progress":
            shown, argv = True, argv[1:]
            continue
        if option != "--record":
            break
        rest = argv[1:] if equals else argv[2:]
        value = value if equals else "".join(argv[1:2])
        if not value or value == "--":
            raise BridgeError(
                "--record needs the name of a file.",
                evidence=" ".join(argv[:3]),
                next="accel-bridge run --record FILE -- COMMAND",
            )
        record, argv = _check_record(value), rest
    return record, shown, argv[1:] if argv[:1] == ["--"] else argv


def _check_record(name: str) -> Path:
    """The recording to be; an older one stays until this one is whole."""
    check_zstd()
    path = Path(name).absolute()
    check_output(path, option="--record", made=(MAGIC,))
    return path


def _is_script(word: str) -> bool:
    """Whether this Python runs it itself: ``-m``, or a Python file that says no interpreter."""
    path = Path(word)
    if word == "-m" or word.endswith(_SCRIPTS):
        return len(word.split()) == 1 or path.exists()  # else it is a whole line in quotes
    if not path.is_file() or os.access(path, os.X_OK) or path.suffix:
        return False
    with path.open("rb") as file:
        return file.read(2) != b"#!"


def _become(argv: list[str], environ: dict[str, str], at_end: Callable[[], None]) -> NoReturn:
    """Replace this process by the command: process id, signals, terminal and status are its own."""
    program = shutil.which(argv[0])
    if program is None:
        raise _not_found(argv)
    environ[child.WATCH] = child.start(at_end)
    sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; a command does not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, argv, environ)
    except OSError as error:
        child.dismiss(environ[child.WATCH])
        advice = "the kernel cannot start it; fix the file, or install what it needs"
        if error.errno == errno.ENOEXEC:
            advice = f"accel-bridge run -- bash {argv[0]} ...   (if it is a shell script)"
        elif error.errno == errno.ENOENT:
            advice = f"install the interpreter that the first line of {program} names"
        raise CommandError(
            f"{argv[0]!r} cannot be started.",
            f"{program}: {error.strerror}",
            advice,
            126,
        ) from error


def _not_found(argv: list[str]) -> CommandError:
    """Why there is no such program, as far as it can be told."""
    name, path = argv[0], Path(argv[0])
    rest = shlex.join(argv)
    if path.is_dir():
        where = str(path.absolute())
        next = "name a program, or a script in it"
        return CommandError(f"{name!r} is a directory.", where, next, 126)
    if path.is_file() and os.access(path, os.X_OK):
        return CommandError(
            f"There is no command {name!r}, but there is such a file here.",
            "like shells, this looks for a word without a slash in PATH alone",
            f"accel-bridge run -- ./{rest}",
        )
    if path.is_file():
        return CommandError(
            f"{name!r} is not executable.",
            f"the mode of {path.absolute()} is {path.stat().st_mode & 0o777:o}",
            f"accel-bridge run -- bash {rest}   (if it is a shell script), or chmod +x {name}",
            126,
        )
    if _ASSIGNMENT.match(name):
        return CommandError(
            f"{name!r} is an assignment, not a command.",
            f"accel-bridge run {rest}",
            f"put it first: {name} accel-bridge run -- {shlex.join(argv[1:])}",
        )
    if f"BASH_FUNC_{name}%%" in os.environ:
        return CommandError(
            f"{name!r} is a shell function, not a program.",
            f"BASH_FUNC_{name}%% is in the environment",
            f"accel-bridge run -- bash -c {shlex.quote(rest)}",
        )
    if len(name.split()) > 1:
        return CommandError(
            f"There is no program whose name is the whole line {name!r}.",
            f"it is one word of {len(argv)}, with its spaces: it stood in quotes",
            f"leave the quotes out, or accel-bridge run -- bash -c {shlex.quote(name)}",
        )
    return CommandError(
        f"There is no command or script {name!r}.",
        f"looked in {Path.cwd()} and in PATH={os.environ.get('PATH', '')}",
        "check the spelling; what only your shell knows (an alias, a function, a built-in) "
        "is started with `accel-bridge run -- bash -ic '...'`",
    )


def _recorded(record: Path | None) -> Callable[[], None]:
    """What says, at the end, where a recording was asked for and none was written."""
    before = _identity(record)

    def check() -> None:
        if record is None or _identity(record) != before:
            return
        there = f"{record} is of an earlier run" if before else f"there is no {record}"
        log.warn(
            f"nothing was recorded: {there}; no training with Megatron reached its last step "
            "with the bridge active"
        )

    return check


def _identity(record: Path | None) -> tuple[int, int] | None:
    """What changes when a file is replaced; None where there is none."""
    try:
        found = record.stat() if record else None
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if found else None
