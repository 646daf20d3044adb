"""The command ``accel-bridge``: finds a plugin's command and runs it.

Only the function of the command that was asked for is imported, so ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final

from accel_bridge import __version__
from accel_bridge.apps.cli import _completion
from accel_bridge.errors import BridgeError, EnvironmentVariableError, printable
from accel_bridge.plugins.commands import Command
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process.child import stand_down
from accel_bridge.process.endings import number_of, of_uncaught, raising
from accel_bridge.process.environment import PLUGINS, did_you_mean, unknown_variables
from accel_bridge.process.log import (
    READER_GONE,
    ReaderGone,
    drop_unwritten,
    is_debug,
    open_streams,
    report,
    tell,
    warn,
    warn_once,
)

PROGRAM: Final = "accel-bridge"
#: Runs programs without PyTorch too: those must not wait for any plugin.
_RUN: Final = Command("run", "", "accel_bridge.apps.cli.run:main")

#: Commands below another, which are typed without it.
_BELOW: Final = {
    **dict.fromkeys(
        ("kernels", "record", "compare", "capsule", "replay", "repeat", "logprobs"), "parity"
    ),
    "train": "tokenizer",
}

_DESCRIPTION: Final = """\
The Megatron script you have runs unchanged on the hardware you have: NVIDIA, Ascend, or none.
"""

_EPILOG: Final = """\
`accel-bridge COMMAND --help` explains a command.
Errors say what happened, the evidence, and the next command; ACCEL_BRIDGE_LOG=debug adds the
traceback. `accel-bridge env` prints all ACCEL_BRIDGE_* variables.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    try:
        stand_down()
        if argv is None:
            open_streams()
        try:
            with raising():
                return _dispatch(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except (BridgeError, OSError, MemoryError) as error:
        if is_debug():
            tell(printable(traceback.format_exc(), keep="\n\t"))
        # A directory that was removed, a file that nobody may read: what was asked for names it.
        refused = BridgeError(
            "The operating system refused what this command needs.",
            evidence=f"{type(error).__name__}: {error}",
            next="fix what the evidence names; ACCEL_BRIDGE_LOG=debug shows the traceback",
        )
        return report(of_uncaught(error) or refused)
    except ReaderGone:  # `| head`
        return READER_GONE
    except KeyboardInterrupt as interrupt:
        if is_debug():
            tell(traceback.format_exc())
        tell(f"{PROGRAM}: {str(interrupt) or 'interrupted'}")
        return 128 + number_of(interrupt)
    finally:
        drop_unwritten()


def help_text(commands: Iterable[Command]) -> str:
    """What ``accel-bridge --help`` prints."""
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.group, []).append(command)
    width = max((len(command.name) for group in groups.values() for command in group), default=0)
    lines = [f"usage: {PROGRAM} [--help] [--version] COMMAND ...", "", _DESCRIPTION]
    for title, group in groups.items():
        lines.append(f"{title}:")
        lines += [f"  {command.name:<{width}}  {command.summary}" for command in group]
        lines.append("")
    return "\n".join(lines) + "\n" + _EPILOG


def _dispatch(argv: list[str]) -> int:
    """Options before the command are the program's; everything after it is the command's."""
    if _completion.is_asked():
        _completion.answer({found.item.name: found.item for found in _load().commands().items})
        return 0
    options = list(takewhile(lambda word: word.startswith("-"), argv))
    rest = argv[len(options) :]
    if not options and not rest:
        options = ["--help"]
    for option in options:
        if option in ("-h", "--help"):
            return _help(_load())
        if option in ("-V", "--version"):
            print(f"{PROGRAM} {__version__}")
            return 0
        raise _unknown("option", option, ["--help", "--version"])
    if rest[0] == _RUN.name:
        return _RUN.run(rest[1:])
    plugins = _load()
    commands = {found.item.name: found.item for found in plugins.commands().items}
    if rest[0] not in commands:
        raise _unknown("command", rest[0], list(commands), map(str, plugins.not_loaded))
    return commands[rest[0]].run(rest[1:])


def _load() -> Plugins:
    """The plugins, for their commands; what they print goes to stderr."""
    try:
        choice = PLUGINS.read()
    except EnvironmentVariableError:
        choice = None  # the command says so, or shows it
    with contextlib.redirect_stdout(sys.stderr):
        plugins = load_plugins(choice)
        plugins.commands()
        for line in unknown_variables(plugins.variables()):
            warn_once(line)
    return plugins


def _help(plugins: Plugins) -> int:
    commands = plugins.commands()
    print(help_text(found.item for found in commands.items), end="")
    for failed in (*plugins.not_loaded, *commands.failed):
        warn(str(failed))
    return 0


def _unknown(kind: str, name: str, known: list[str], failed: Iterable[str] = ()) -> BridgeError:
    near = did_you_mean(name, known)
    if kind == "command" and (inner := _BELOW.get(name)):
        near = f"; did you mean '{inner} {name}'?"
    return BridgeError(
        f"there is no {kind} {name!r}{near}",
        evidence=[f"known: {', '.join(known)}", *failed],
        next=f"{PROGRAM} --help",
    )
