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
        _print(found)
    if arguments.kernels and not arguments.json and isinstance(found.selected, Selection):
        print_kernels(found.selected.chosen)
    if isinstance(found.selected, BridgeError):
        raise found.selected
    return 0


def survey(settings: Settings) -> Survey:
    """Load the plugins, probe every backend and select."""
    plugins = load_plugins(settings.plugins)
    probes = probe_all(plugins)
    try:
        return Survey(plugins, probes, select(plugins, settings, probes=probes))
    except BridgeError as error:
        return Survey(plugins, probes, error)


def report(found: Survey) -> dict[str, object]:
    """The survey as a JSON document."""
    return {
        "chosen": _chosen(found),
        "backends": [_as_json(probed) for probed in found.probes],
        "failed_plugins": [str(failed) for failed in found.plugins.failed],
    }


def print_probes(probes: Sequence[ProbedBackend]) -> None:
    """A table of all probes, then each one's evidence."""
    print_table(
        ["backend", "usable", "devices", "reason"],
        [
            [
                probed.backend.name,
                "yes" if probed.probe.available else "no",
                "-" if probed.probe.devices is None else str(probed.probe.devices),
                probed.probe.reason,
            ]
            for probed in probes
        ],
    )
    for probed in probes:
        lines = [f"{probed.backend.name}: {probed.backend.title} (plugin {probed.plugin!r})"]
        lines += [f"  evidence: {line}" for line in probed.probe.evidence]
        if probed.probe.remedy:
            lines.append(f"  next:     {probed.probe.remedy}")
        if probed.traceback and is_debug():
            lines.append(probed.traceback)
        print("\n" + printable("\n".join(lines), keep="\n\t"))


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
    """The kernels as a table."""
    print_heading(f"Kernels of the {backend.name} backend")
    print_table(["contract", "call", "implementation", "why"], kernel_rows(backend))


def _print(found: Survey) -> None:
    print_probes(found.probes)
    for failed in found.plugins.failed:
        print(f"\n{printable(str(failed))}")
    if isinstance(found.selected, Selection):
        print_heading("Chosen")
        print(printable(found.selected.why))


def _chosen(found: Survey) -> dict[str, object] | None:
    if isinstance(found.selected, BridgeError):
        return None
    selection = found.selected
    return {"backend": selection.chosen.name, "how": selection.how, "why": selection.why}


def _as_json(probed: ProbedBackend) -> dict[str, object]:
    return {
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
