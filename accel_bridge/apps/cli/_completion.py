"""Completion in shells, by argcomplete: ``accel-bridge completion bash`` prints what to source.

The shell calls the program with ``_ARGCOMPLETE`` set and the line that is being typed. The parser
of the command on that line answers, before anything runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from accel_bridge.plugins.commands import Command
from accel_bridge.process.parser import COMPLETING, Parser

SHELLS: Final = ("bash", "zsh", "fish")
#: What to type for each of them, once and for all.
_LASTING: Final = {
    "bash": "echo 'eval \"$(accel-bridge completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(accel-bridge completion zsh)\"' >> ~/.zshrc",
    "fish": "accel-bridge completion fish > ~/.config/fish/completions/accel-bridge.fish",
}


def main(argv: Sequence[str]) -> int:
    """Print the code that a shell sources."""
    parser = Parser(
        prog="accel-bridge completion",
        description="Prints what makes a shell complete commands, options and files after "
        "`accel-bridge`. For good: " + "; ".join(_LASTING.values()),
    )
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_args(argv).shell
    from argcomplete.shell_integration import shellcode

    print(shellcode(["accel-bridge"], shell=shell))
    return 0


def is_asked() -> bool:
    """Whether a shell wants to know how the line goes on."""
    return "_ARGCOMPLETE" in os.environ and "COMP_LINE" in os.environ


def words_before() -> list[str]:
    """The finished words of the line after the program's name."""
    line = os.environ["COMP_LINE"]
    point = os.environ.get("COMP_POINT", "")
    typed = line.encode()[: int(point)].decode(errors="ignore") if point.isdigit() else line
    try:
        argv = shlex.split(typed)
    except ValueError:  # a quote that is still open
        argv = typed.split()
    return argv[1:] if typed[-1:].isspace() else argv[1:-1]


def complete_command(commands: Iterable[Command]) -> None:
    """Answer with the names of commands; does not come back."""
    parser = Parser(prog="accel-bridge")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("command", choices=[command.name for command in commands])
    complete(parser, skipped=0)


def complete(parser: argparse.ArgumentParser, skipped: int = 1) -> None:
    """Answer with what ``parser`` takes next; does not come back.

    :param skipped: words between the program's name and those that the parser reads.
    """
    import argcomplete

    # argcomplete reads the line from this word on (1: the program itself).
    os.environ["_ARGCOMPLETE"] = str(1 + skipped)
    # torchrun's options are not in the help text; each has a second spelling, with underscores.
    spelled = [word for action in parser._actions for word in action.option_strings]
    argcomplete.autocomplete(
        parser,
        always_complete_options=True,
        print_suppressed=True,
        exclude=[word for word in spelled if "_" in word or word == "--runner"],
    )


def answer(commands: Mapping[str, Command]) -> None:
    """Complete the line that a shell is asking about; does not come back."""
    before = words_before()
    if before and before[0] in commands:
        COMPLETING.append(complete)
        # A command of a plugin may have a parser of its own: it is asked for what does no harm.
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            contextlib.suppress(SystemExit),
        ):
            commands[before[0]].run(["--help"])
        files = Parser()
        files.add_argument("argv", nargs="*")
        complete(files)
    elif not before:
        complete_command(commands.values())
