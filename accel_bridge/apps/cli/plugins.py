"""``accel-bridge plugins``: where backends, patches and commands come from."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict

from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_heading,
    print_json,
    print_table,
)
from accel_bridge.errors import printable
from accel_bridge.plugins.candidates import tell_failed
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process.endings import ending_at_once
from accel_bridge.process.environment import Settings
from accel_bridge.process.log import is_debug
from accel_bridge.process.parser import Parser


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge plugins",
        description="Lists the plugins that were loaded and those that failed. A failed plugin "
        "stops nothing unless it is asked for; one that ACCEL_BRIDGE_PLUGINS names ends this "
        "command with status 2. ACCEL_BRIDGE_LOG=debug shows whole tracebacks.",
    )
    add_json_flag(parser)
    return parser


@ending_at_once()
def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    with only_stderr():
        plugins = load_plugins(Settings.from_environ(os.environ).plugins)
    if arguments.json:
        print_json(lambda: report(plugins))
    else:
        _print(plugins)
    tell_failed(failed for failed in plugins.failed if failed.requested)
    return 0


def _print(plugins: Plugins) -> None:
    rows = [
        [
            plugin.name,
            plugin.distribution or "(a module path)",
            "built-in" if plugin.builtin else "third party",
            ", ".join(sorted(hooks_of(plugins, plugin.name))),
        ]
        for plugin in plugins.loaded
    ]
    print_table(["plugin", "package", "kind", "hooks"], rows)
    if plugins.failed:
        print_heading("Failed")
        for failed in plugins.failed:
            print(printable(str(failed)))
            if is_debug() and failed.traceback:
                print(printable(failed.traceback, keep="\n\t"))


def report(plugins: Plugins) -> dict[str, object]:
    return {
        "loaded": [
            {**asdict(plugin), "hooks": sorted(hooks_of(plugins, plugin.name))}
            for plugin in plugins.loaded
        ],
        "failed": [asdict(failed) for failed in plugins.failed],
    }


def hooks_of(plugins: Plugins, name: str) -> list[str]:
    """Names of the hooks that a loaded plugin implements."""
    callers = plugins.manager.get_hookcallers(plugins.manager.get_plugin(name)) or []
    return [caller.name for caller in callers]
