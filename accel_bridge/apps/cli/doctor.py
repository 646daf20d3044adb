"""``accel-bridge doctor``: what would stop a training here, and the command that fixes it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from accel_bridge.apps.cli._output import add_json_flag, only_stderr, print_json, print_table
from accel_bridge.apps.doctor import STEPS, Training, choose, examine, take_apart
from accel_bridge.apps.doctor import report as reporting
from accel_bridge.errors import EnvironmentVariableError
from accel_bridge.plugins.checks import Machine
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process import launch
from accel_bridge.process.environment import PLUGINS
from accel_bridge.process.log import warn
from accel_bridge.process.parser import Parser, seconds


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge doctor",
        usage="accel-bridge doctor [OPTIONS] [TORCHRUN OPTIONS] [-- MEGATRON ARGUMENTS]",
        description="Looks for what would stop a training, and says what fixes it. Without "
        "arguments it looks at the machine and what is installed; after -- come the arguments of "
        "a training, or its whole command line (torchrun ... pretrain_gpt.py ...), which is not "
        "started. Ends with status 1 when something would fail; warnings alone end with 0.",
        epilog=launch.EPILOG,
        allow_abbrev=False,
    )
    add_json_flag(parser)
    parser.add_argument("--all", action="store_true", help="also show what is well")
    parser.add_argument("--list", action="store_true", help="list the checks and end")
    parser.add_argument("--only", metavar="NAME,...", default="", help="run these checks alone")
    parser.add_argument("--skip", metavar="NAME,...", default="", help="leave these checks out")
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        help="that each import and each program may take (default: up to 90)",
    )
    launch.add_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    """Examine this machine, and the training that is named."""
    own, after = list(words), None
    if "--" in own:
        place = own.index("--")
        own, after = own[:place], own[place + 1 :]
    arguments = _parser().parse_args(own)
    with only_stderr():
        plugins = _plugins()
        collected = plugins.checks()
    for failed in collected.failed:
        warn(str(failed))
    checks = [*STEPS, *(found.item for found in collected.items)]
    if arguments.list:
        rows = [[one.name, one.subject, one.looks_for] for one in checks]
        print_table(["check", "about", "looks for"], rows)
        return 0
    training = Training()
    training.take(arguments)
    if after is not None:
        take_apart(after, training)
    chosen = choose(
        checks, _names(arguments.only), _names(arguments.skip), training.words is not None
    )
    environ = {**os.environ, **training.environ}
    os.environ.update(training.environ)  # what reads it itself, in child processes
    with only_stderr(), _progress() as say:
        say(f"{len(chosen)} checks; importing torch and others takes longest")
        results = examine(
            Machine(environ=environ, seconds=arguments.wait), plugins, chosen, training, say
        )
    if arguments.json:
        print_json(lambda: reporting.as_json(results))
    else:
        reporting.show(results, everything=arguments.all)
    return reporting.exit_status(results)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """Tells a terminal what takes long, in one line that is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda line: status.update(escape(line))


def _plugins() -> Plugins:
    """All plugins; a wrong ``ACCEL_BRIDGE_PLUGINS`` is a finding and not the end."""
    choice = None
    with contextlib.suppress(EnvironmentVariableError):
        choice = PLUGINS.read()
    return load_plugins(choice)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
