"""``accel-bridge libraries``: which compiled libraries are real, have a stand-in, or are absent."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from accel_bridge._activation import current
from accel_bridge._environment import Settings
from accel_bridge._errors import BridgeError
from accel_bridge._interrupts import ending_at_once
from accel_bridge._loaded import ASKED_FOR
from accel_bridge._log import warn
from accel_bridge._parser import Parser
from accel_bridge._plugins import Plugins, load_plugins
from accel_bridge._selection import Selection, select
from accel_bridge._takeover import choose_takeover
from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_json,
    print_table,
)
from accel_bridge.libraries import LIBRARIES, Standing, decide


@dataclass(frozen=True, slots=True)
class Libraries:
    """What imports of compiled libraries find on a backend.

    :param backend: name of the selected backend.
    :param adaptor: the adaptor that takes its device over, or None.
    """

    backend: str
    adaptor: str | None
    standings: tuple[Standing, ...]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge libraries",
        description="Says for each compiled library that Megatron asks for whether an import "
        "finds the real one, accel_bridge's stand-in, or nothing, on the backend that a program "
        "would get here, and why. None of them is imported. ACCEL_BRIDGE_LIBRARIES chooses.",
    )
    add_json_flag(parser)
    return parser


def main(words: Sequence[str]) -> int:
    """Print the standing of every library."""
    arguments = _parser().parse_args(words)
    with ending_at_once():
        return _main(arguments)


def _main(arguments: argparse.Namespace) -> int:
    with only_stderr():
        settings = Settings.from_environ(os.environ)
        plugins = load_plugins(settings.plugins)
        for line in settings.libraries.unknown(LIBRARIES):
            warn(line)
        found = look(settings, plugins, select(plugins, settings))
        for standing in found.standings:
            if standing.warning is not None:
                warn(standing.warning)
    if arguments.json:
        print_json(lambda: report(found))
    else:
        print_libraries(found)
    return 0


def look(settings: Settings, plugins: Plugins, selection: Selection) -> Libraries:
    """The standing of every library on the selected backend; an active bridge's own.

    :raises BridgeError: an adaptor or the backend cannot be used.
    """
    backend, bridge = selection.chosen, current()
    collected = plugins.takeovers(backend)
    for failed in collected.failed:
        if failed.requested:
            raise failed.as_error(ASKED_FOR)
        warn(str(failed))
    takeover = choose_takeover([one.item for one in collected.items], backend.name)
    adaptor = takeover.adaptor if takeover else None
    if bridge is not None and bridge.selection.chosen.name == backend.name:
        return Libraries(backend.name, adaptor, tuple(bridge.libraries.standings))
    standings = decide(settings.libraries, backend.hidden_modules, backend.title, adaptor)
    return Libraries(backend.name, adaptor, tuple(standings))


def report(found: Libraries | BridgeError) -> dict[str, object]:
    """The libraries as a JSON document."""
    if isinstance(found, BridgeError):
        return {"error": str(found)}
    rows = [
        {
            "name": one.library.name,
            "origin": one.origin.value,
            "version": one.version,
            "why": one.why,
            "warning": one.warning,
            "modules": list(one.library.roots),
            "distribution": one.library.distribution,
        }
        for one in found.standings
    ]
    return {"backend": found.backend, "adaptor": found.adaptor, "libraries": rows}


def print_libraries(found: Libraries) -> None:
    """The libraries as a table."""
    rows = [
        [one.library.name, one.origin.value, one.version or "-", one.why] for one in found.standings
    ]
    print_table(["library", f"on {found.backend}", "version", "why"], rows)
