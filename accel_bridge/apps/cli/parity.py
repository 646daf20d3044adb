"""``accel-bridge parity``: prove that backends agree."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accel_bridge.apps.cli import parity_compare, parity_record
from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_heading,
    print_json,
    print_table,
)
from accel_bridge.bridge.selection import select_here
from accel_bridge.device.backend import Backend, environment_of
from accel_bridge.process.endings import ending_at_once
from accel_bridge.process.extras import import_torch
from accel_bridge.process.outputs import check_output, holds, write_output
from accel_bridge.process.parser import Parser, positive

if TYPE_CHECKING:
    from accel_bridge.apps.parity._run import KernelReport

#: Without it torch loads every installed device plugin, wanted or not, broken or not.
_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Commands that start runs.
_TRAINING: Final = {
    "record": parity_record.run_record,
    "capsule": parity_record.run_capsule,
    "repeat": parity_record.run_repeat,
    "logprobs": parity_compare.run_logprobs,
}
#: Stands in the head of every page.
_MARK: Final = b"accel-bridge parity"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge parity",
        description="Measures how far results are from the reference, and says what is too far.",
    )
    commands = parser.add_subparsers(dest="parity_command", required=True, metavar="COMMAND")
    kernels = commands.add_parser(
        "kernels",
        help="every kernel of a backend against the float64 reference",
        description="Runs every kernel of the backend over layouts, masks, dtypes and shapes, "
        "forward and backward, and prints the measured ratios, worst first. Ends with status 1 "
        "when a kernel fails.",
    )
    kernels.add_argument("--backend", metavar="NAME", help="default: the one a program would get")
    kernels.add_argument(
        "--kernel", metavar="NAME", action="append", help="only this contract; may be repeated"
    )
    kernels.add_argument(
        "--jobs",
        metavar="N",
        type=positive,
        help="processes that share the cases; default: one for every two cores, at most eight",
    )
    kernels.add_argument("--html", metavar="FILE", type=Path, help="also write an HTML page")
    kernels.add_argument(
        "--speed", metavar="FILE", type=Path, help="instead, write each kernel's time, as JSON"
    )
    add_json_flag(kernels)
    parity_record.add_record(commands)
    parity_compare.add_compare(commands)
    parity_record.add_capsule(commands)
    parity_compare.add_replay(commands)
    parity_record.add_repeat(commands)
    parity_compare.add_logprobs(commands)
    return parser


def main(argv: Sequence[str]) -> int:
    arguments = parity_record.with_argv(_parser().parse_args, argv)
    if arguments.parity_command in _TRAINING:
        return _TRAINING[arguments.parity_command](arguments)
    with ending_at_once():
        return _HERE[arguments.parity_command](arguments)


def _run_kernels(arguments: argparse.Namespace) -> int:
    if arguments.speed is not None:
        return _run_speed(arguments)
    if arguments.html is not None:
        check_output(arguments.html, option="--html", made=holds(_MARK))
    report = _check_kernels(arguments)
    if arguments.html is not None:
        from accel_bridge.apps.parity._report import as_html

        write_output(arguments.html, as_html(report).encode(), option="--html")
    if arguments.json:
        from accel_bridge.apps.parity._report import as_json

        print_json(lambda: as_json(report))
    else:
        _print(report)
    return 0 if report.passed else 1


def _run_speed(arguments: argparse.Namespace) -> int:
    with only_stderr():
        backend, _ = _chosen(arguments)
        from accel_bridge.apps.parity._speed import speeds

        small = backend.name == "cpu" or "EMULATED" in backend.title
        found = list(speeds(backend, small=small))
    rows = [
        {**asdict(one), "share of roofline": round(one.share, 3), "device": backend.title}
        for one in found
    ]
    write_output(arguments.speed, json.dumps(rows, indent=1).encode() + b"\n", option="--speed")
    for one in found:
        beside = f"{one.share:.0%} of its roofline" if one.roofline else "no roofline is known"
        print(f"{one.kernel} ({one.call}): {one.seconds * 1e3:.3f} ms, {beside}; {one.source}")
    return 0


def _chosen(arguments: argparse.Namespace) -> tuple[Backend, str]:
    """The backend and why, with torch imported for it."""
    selection = select_here(arguments.backend)
    for name, value in {_AUTOLOAD: "0", **environment_of(selection.chosen)}.items():
        os.environ.setdefault(name, value)
    # After the selection: torch takes seconds to import, and a wrong name should not.
    import_torch()
    return selection.chosen, selection.why


def _check_kernels(arguments: argparse.Namespace) -> KernelReport:
    with only_stderr():
        backend, why = _chosen(arguments)
        from accel_bridge.apps.parity._run import check_backend

        return check_backend(backend, why, arguments.kernel, arguments.jobs)


def _print(report: KernelReport) -> None:
    from accel_bridge.apps.parity._report import COLUMNS, RULE, SUMMARY_COLUMNS, cells, summary

    print_table(COLUMNS, [cells(row) for row in report.worst_first])
    print_heading("Kernels")
    print_table(SUMMARY_COLUMNS, summary(report))
    print(f"\nbackend: {report.why}\ndevice:  {report.device}\nrule:    {RULE}")
    for contract, difference in report.signatures.items():
        print(f"signature of {contract}: {difference}")
    print(f"\n{report.verdict}")


#: Commands that compute in this process.
_HERE: Final = {
    "kernels": _run_kernels,
    "compare": parity_compare.run_compare,
    "replay": parity_compare.run_replay,
}
