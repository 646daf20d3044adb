"""The command ``accel-bridge``: finds the subcommand and runs it.

Only the module of the subcommand that was asked for is imported, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from typing import Final

from accel_bridge import __version__
from accel_bridge._environment import did_you_mean
from accel_bridge._errors import BridgeError
from accel_bridge._log import is_debug

PROGRAM: Final = "accel-bridge"


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    :param name: the word on the command line.
    :param summary: what it does, for ``--help``.
    :param module: the module with ``add_parser(subparsers)`` and ``run(arguments) -> int``.
    :param function: for a command that takes all remaining words as they are: the function in
        ``module`` that takes them and returns the exit status.
    """

    name: str
    summary: str
    module: str
    function: str | None = None


def _own(name: str, summary: str) -> Command:
    return Command(name, summary, f"accel_bridge.apps.cli.{name.replace('-', '_')}")


#: The subcommands, in the groups that ``--help`` shows.
COMMANDS: Final[tuple[tuple[str, tuple[Command, ...]], ...]] = (
    (
        "Start here",
        (
            _own("demo", "the whole way on this machine: text, training, loss curve, resume"),
            _own("env", "versions and devices, to paste into an issue"),
        ),
    ),
    (
        "Look",
        (
            _own("backends", "what hardware was looked for, what was found, what is chosen, why"),
            _own("plugins", "where backends and patches come from, and which plugins failed"),
            _own("patches", "every patch against the installed Megatron, and why it exists"),
        ),
    ),
    (
        "Train",
        (
            Command(
                "preprocess",
                "text to Megatron's .bin and .idx; the flags of tools/preprocess_data.py",
                "accel_bridge.pretrain.preprocess",
                "main",
            ),
            Command(
                "inspect",
                "look into a data set of .bin and .idx",
                "accel_bridge.pretrain.preprocess",
                "inspect_main",
            ),
            Command(
                "pretrain",
                "train a GPT: torchrun with Megatron's own arguments",
                "accel_bridge.apps.cli.pretrain",
                "main",
            ),
            Command(
                "run",
                "run any Megatron script, unedited, with the bridge active",
                "accel_bridge.run",
                "main",
            ),
        ),
    ),
    (
        "Check",
        (
            _own("parity", "prove that kernels and machines agree, with measured ratios"),
            Command(
                "emulate-ascend",
                "run a command on EMULATED Ascend NPUs, with the real torch_npu",
                "accel_bridge.backends.ascend.emulator",
                "main",
            ),
        ),
    ),
)

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
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except BridgeError as error:
        if is_debug():
            traceback.print_exc()
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (`| head`) has gone; python must not complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def help_text() -> str:
    """What ``accel-bridge --help`` prints."""
    width = max(len(command.name) for _, group in COMMANDS for command in group)
    lines = [f"usage: {PROGRAM} [--help] [--version] COMMAND ...", "", _DESCRIPTION]
    for title, group in COMMANDS:
        lines.append(f"{title}:")
        lines += [f"  {command.name:<{width}}  {command.summary}" for command in group]
        lines.append("")
    return "\n".join(lines) + "\n" + _EPILOG


def _dispatch(words: list[str]) -> int:
    """Options before the command are the program's; everything after it is the command's."""
    options = list(takewhile(lambda word: word.startswith("-"), words))
    rest = words[len(options) :]
    if not options and not rest:
        options = ["--help"]
    for option in options:
        if option in ("-h", "--help"):
            print(help_text(), end="")
            return 0
        if option in ("-V", "--version"):
            print(f"{PROGRAM} {__version__}")
            return 0
        raise _unknown("option", option, ["--help", "--version"])
    return _run(_find(rest[0]), rest[1:])


def _find(name: str) -> Command:
    known = {command.name: command for _, group in COMMANDS for command in group}
    if name not in known:
        raise _unknown("command", name, list(known))
    return known[name]


def _run(command: Command, words: list[str]) -> int:
    module = import_module(command.module)
    if command.function is not None:
        function: Callable[[list[str]], int] = getattr(module, command.function)
        return function(words)
    parser = argparse.ArgumentParser(prog=PROGRAM, allow_abbrev=False)
    subparsers = parser.add_subparsers()
    module.add_parser(subparsers)
    run: Callable[[argparse.Namespace], int] = module.run
    # The command's own parser, so that its usage stands in its errors.
    return run(subparsers.choices[command.name].parse_args(words))


def _unknown(kind: str, name: str, known: list[str]) -> BridgeError:
    return BridgeError(
        f"there is no {kind} {name!r}{did_you_mean(name, known)}",
        evidence=f"known: {', '.join(known)}",
        next=f"{PROGRAM} --help",
    )
