"""``--help`` of Megatron's parser, and what it says of arguments that it does not take."""

from __future__ import annotations

import argparse
import re
from typing import Final, NoReturn

from accel_bridge.errors import BridgeError
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, after
from accel_bridge.patching.host import know_flags
from accel_bridge.process.endings import report
from accel_bridge.process.environment import did_you_mean
from accel_bridge.process.parser import CommandLineError


def escape_percent(parser: argparse.ArgumentParser) -> None:
    """Double each ``%`` of a help text that argparse cannot format."""
    for action in parser._actions:
        if action.help and action.help is not argparse.SUPPRESS:
            values = {**vars(action), "prog": parser.prog}
            try:
                action.help % values
            except (KeyError, TypeError, ValueError):
                action.help = action.help.replace("%", "%%")


#: How argparse begins: one argument, or those that nobody knows.
_ONE: Final = re.compile(r"argument (\S+?)(?:/\S+)?: ")
_UNKNOWN: Final = re.compile(r"unrecognized arguments: (\S+)")
_MOST: Final = 400


def explained(parser: argparse.ArgumentParser, message: str) -> BridgeError:
    """The three parts for a complaint of argparse."""
    flags = parser._option_string_actions
    evidence = [message if len(message) <= _MOST else f"{message[:_MOST]}..."]
    known, unknown = _ONE.match(message), _UNKNOWN.match(message)
    action = flags.get(known[1]) if known else None
    if action is not None and action.help and action.help is not argparse.SUPPRESS:
        evidence.append(f"{known[1] if known else ''}: {' '.join(action.help.split())[:_MOST]}")
    if unknown:
        flag = unknown[1].partition("=")[0]
        evidence.append(f"Megatron has no {flag}{did_you_mean(flag, flags)}")
    return CommandLineError(
        "Megatron does not take these arguments.",
        evidence=evidence,
        next="fix it in the command; `accel-bridge pretrain -- --help` lists all arguments",
    )


def explain_complaints(parser: argparse.ArgumentParser) -> None:
    """Let the parser end in three parts, where it shows hundreds of lines of usage."""

    def error(message: str) -> NoReturn:
        explanation = explained(parser, message)
        # With the status and the exception of argparse: scripts may count on them.
        raise SystemExit(report(explanation, explanation))

    parser.error = error  # type: ignore[method-assign]


def _remember(context: PatchContext, parser: argparse.ArgumentParser) -> None:
    explain_complaints(parser)
    know_flags(parser)  # for the errors that come later


PATCHES = (
    megatron_patch(
        id="help-percent",
        target="megatron.training.arguments:add_megatron_arguments",
        kind=Kind.WRAP,
        make=after(lambda context, parser: escape_percent(parser)),
        why="a bare % in a help text makes argparse fail",
        removed_when="upstream writes %% in its help texts",
        loses="--help ends in a traceback",
    ),
    megatron_patch(
        id="argument-complaints",
        target="megatron.training.arguments:add_megatron_arguments",
        kind=Kind.WRAP,
        after=("help-percent",),
        make=after(_remember),
        why="a wrong argument is answered with a thousand lines of usage and one of reason",
        removed_when="never: it is advice, not a change",
        loses="the usage, which --help shows",
    ),
)
