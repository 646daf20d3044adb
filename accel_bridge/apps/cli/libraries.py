"""``accel-bridge libraries``: which compiled libraries are real, have a shim, or are absent."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_json,
    print_table,
)
from accel_bridge.bridge.activation import current
from accel_bridge.bridge.selection import Selection, select
from accel_bridge.errors import BridgeError
from accel_bridge.libraries import LIBRARIES, Resolution, decide
from accel_bridge.plugins.adaptors import choose_delegation
from accel_bridge.plugins.candidates import tell_failed
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process.endings import ending_at_once
from accel_bridge.process.environment import Settings
from accel_bridge.process.log import warn
from accel_bridge.process.parser import Parser


@dataclass(frozen=True, slots=True)
class Libraries:
    """What imports of compiled libraries find on a backend.

    :param backend: name of the selected backend.
    :param adaptor: the adaptor that takes its device over, or None.
    """

    backend: str
    adaptor: str | None
    resolutions: tuple[Resolution, ...]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge libraries",
        description="Says for each compiled library that Megatron asks for whether an import "
        "finds the real one, accel_bridge's shim, or nothing, on the backend that a program "
        "would get here, and why. None of them is imported. ACCEL_BRIDGE_LIBRARIES chooses.",
    )
    add_json_flag(parser)
    return parser


@ending_at_once()
def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    with only_stderr():
        settings = Settings.from_environ(os.environ)
        plugins = load_plugins(settings.plugins)
        for line in settings.libraries.unknown(LIBRARIES):
            warn(line)
        found = look(settings, plugins, select(plugins, settings))
        for resolution in found.resolutions:
            if resolution.warning is not None:
                warn(resolution.warning)
    if arguments.json:
        print_json(lambda: report(found))
    else:
        print_libraries(report(found))
    return 0


def look(settings: Settings, plugins: Plugins, selection: Selection) -> Libraries:
    """The resolution of every library on the selected backend; an active bridge's own.

    :raises BridgeError: an adaptor or the backend cannot be used.
    """
    backend, bridge = selection.chosen, current()
    collected = plugins.delegations(backend)
    tell_failed(collected.failed)
    delegation = choose_delegation([one.item for one in collected.items], backend.name)
    adaptor = delegation.adaptor if delegation else None
    if bridge is not None and bridge.selection.chosen.name == backend.name:
        return Libraries(backend.name, adaptor, tuple(bridge.libraries.resolutions))
    resolutions = decide(settings.libraries, backend.hidden_modules, backend.title, adaptor)
    return Libraries(backend.name, adaptor, tuple(resolutions))


def report(found: Libraries | BridgeError) -> dict[str, Any]:
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
        for one in found.resolutions
    ]
    return {"backend": found.backend, "adaptor": found.adaptor, "libraries": rows}


def print_libraries(report: dict[str, Any]) -> None:
    """The libraries as a table, or the error that prevents to say."""
    if "error" in report:
        print(report["error"])
        return
    rows = [
        [one["name"], one["origin"], one["version"] or "-", one["why"]]
        for one in report["libraries"]
    ]
    print_table(["library", f"on {report['backend']}", "version", "why"], rows)
