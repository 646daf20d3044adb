"""``--help`` of Megatron's parser."""

from __future__ import annotations

import argparse

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, after


def escape_percent(parser: argparse.ArgumentParser) -> None:
    """Double each ``%`` of a help text that argparse cannot format."""
    for action in parser._actions:
        if action.help and action.help is not argparse.SUPPRESS:
            values = {**vars(action), "prog": parser.prog}
            try:
                action.help % values
            except (KeyError, TypeError, ValueError):
                action.help = action.help.replace("%", "%%")


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
)
