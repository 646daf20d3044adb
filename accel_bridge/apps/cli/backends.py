"""``accel-bridge backends``: what hardware was looked for, what was found, what is chosen."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_heading,
    print_json,
    print_table,
)
from accel_bridge.bridge.selection import Selection, probe_all, select
from accel_bridge.device.backend import Backend, ProbedBackend, kernels_of
from accel_bridge.errors import BridgeError, printable
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process.endings import ending_at_once
from accel_bridge.process.environment import Settings
from accel_bridge.process.extras import import_torch
from accel_bridge.process.log import is_debug
from accel_bridge.process.parser import Parser


@dataclass(frozen=True, slots=True)
class Survey:
    """All backends with their probes, and which one a program would get.

    :param selected: the selection, or the error that a program would stop with.
    """

    plugins: Plugins
    probes: tuple[ProbedBackend, ...]
    selected: Selection | BridgeError


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge backends",
        description="Probes every backend and says which one a program would get here, and why. "
        "Ends with status 2 when a program would get none.",
    )
    add_json_flag(parser)
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="also every kernel of the chosen backend, with the reason for it (imports torch)",
    )
    return parser


@ending_at_once()
def main(argv: Sequence[str]) -> int:
    """Print every backend's probe and the selection."""
    arguments = _parser().parse_args(argv)
    with only_stderr():
        found = survey(Settings.from_environ(os.environ))
        found.plugins.check_variables()
    if arguments.json:
        print_json(lambda: report(found))
    else:
        print_probes(report(found))
    if isinstance(found.selected, BridgeError):
        raise found.selected
    if not arguments.json:
        print_heading("Chosen")
        print(printable(found.selected.why))
        if arguments.kernels:
            print_kernels(found.selected.chosen)
    return 0


def survey(settings: Settings) -> Survey:
    """Load the plugins, probe every backend and select."""
    plugins = load_plugins(settings.plugins)
    probes = probe_all(plugins)
    try:
        return Survey(plugins, probes, select(plugins, settings, probes=probes))
    except BridgeError as error:
        return Survey(plugins, probes, error)


def report(found: Survey) -> dict[str, Any]:
    chosen, selected = None, found.selected
    if not isinstance(selected, BridgeError):
        chosen = {"backend": selected.chosen.name, "how": selected.how, "why": selected.why}
    return {
        "chosen": chosen,
        "backends": [
            {
                "name": probed.backend.name,
                "title": probed.backend.title,
                "priority": probed.backend.priority,
                "plugin": probed.plugin,
                "available": probed.probe.available,
                "devices": probed.probe.devices,
                "reason": probed.probe.reason,
                "evidence": list(probed.probe.evidence),
                "remedy": probed.probe.remedy,
                "traceback": probed.traceback,
            }
            for probed in found.probes
        ],
        "failed_plugins": [str(failed) for failed in found.plugins.failed],
    }


def print_probes(report: dict[str, Any]) -> None:
    """A table of all probes, each one's evidence, and the plugins that failed."""
    rows = [
        [
            one["name"],
            "yes" if one["available"] else "no",
            "-" if one["devices"] is None else str(one["devices"]),
            one["reason"],
        ]
        for one in report["backends"]
    ]
    print_table(["backend", "usable", "devices", "reason"], rows)
    for one in report["backends"]:
        lines = [f"{one['name']}: {one['title']} (plugin {one['plugin']!r})"]
        lines += [f"  evidence: {line}" for line in one["evidence"]]
        if one["remedy"]:
            lines.append(f"  next:     {one['remedy']}")
        if one["traceback"] and is_debug():
            lines.append(one["traceback"])
        print("\n" + printable("\n".join(lines), keep="\n\t"))
    for failed in report["failed_plugins"]:
        print(f"\n{printable(failed)}")


def kernel_rows(backend: Backend) -> list[list[str]]:
    """Contract, call, implementation and reason, for every kernel of ``backend``."""
    import_torch()
    from accel_bridge.kernels import CONTRACTS, Kernel

    rows = []
    for name, contract in CONTRACTS.items():
        kernel: Kernel[Any, Any] = kernels_of(backend).resolve(contract)
        rows.append([name, "", kernel.source, kernel.why])
        if kernel.choices is not None:
            rows += [["", call, chosen, why] for call, chosen, why in kernel.choices()]
    return rows


def print_kernels(backend: Backend) -> None:
    print_heading(f"Kernels of the {backend.name} backend")
    print_table(["contract", "call", "implementation", "why"], kernel_rows(backend))
