"""``accel-bridge parity replay``: a capsule's operators again, against float64 or another's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from accel_bridge.apps.cli._output import add_json_flag, only_stderr, print_json
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.parser import Parser
from accel_bridge.process.torch_import import import_torch
from accel_bridge.recording import Capsule, read_capsule


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "replay",
        help="the first operator of a capsule that departs from float64, or from another capsule",
        description="Runs every operator of a capsule again in float64 on the inputs that it had, "
        "and names the first whose recorded result is further off than its precision explains. "
        "With two capsules it also names the first operator that only one of them ran, or with "
        "other arguments. Needs no Megatron and no accelerator. Ends with status 1 when it names "
        "one.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="a capsule; with B, the one to trust")
    parser.add_argument("b", metavar="B", type=Path, nargs="?", help="the capsule to judge")
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="judge this backend's kernels on the recorded inputs, instead of what was recorded",
    )
    parser.add_argument(
        "--precision",
        choices=("float64", "float32"),
        default="float64",
        help="of the reference (default: %(default)s)",
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay and print; 0 when no operator departs."""
    a = read_capsule(arguments.a)
    b = None if arguments.b is None else read_capsule(arguments.b)
    if b is not None and (a.module, a.step, a.precision) != (b.module, b.step, b.precision):
        raise BridgeError(
            "The capsules are of different modules, steps or precisions.",
            evidence=tuple(f"{one.module}, step {one.step}, {one.precision}" for one in (a, b)),
            next="accel-bridge parity capsule --module NAME --step N, the same for both",
        )
    with only_stderr():
        import_torch()
        import torch

        from accel_bridge.apps.capsules import replayed

        if b is None:
            kernels = _kernels(arguments.backend)
            judgement = replayed.judge(a, getattr(torch, arguments.precision), kernels)
            document = replayed.as_json(a, judgement)
            whose = "as recorded" if kernels is None else f"backend {arguments.backend}, here"
            lines = replayed.lines_of_one(a, judgement, whose)
        else:
            found = replayed.diverge(a, b)
            document, lines = replayed.as_json(a, found), replayed.lines_of_two(a, b, found)
    if arguments.json:
        print_json(lambda: document)
    else:
        print(printable("\n".join([*_facts(a, b), *lines]), keep="\n"))
    return 0 if document["passed"] else 1


def _kernels(backend: str | None) -> Any:
    if backend is None:
        return None
    import os

    from accel_bridge.bridge.selection import select
    from accel_bridge.kernels import CONTRACTS
    from accel_bridge.plugins.manager import load_plugins
    from accel_bridge.process.environment import Settings

    settings = Settings.from_environ(os.environ)
    chosen = select(load_plugins(settings.plugins), settings, backend).chosen
    return lambda name: chosen.kernels().resolve(CONTRACTS[name])


def _facts(a: Capsule, b: Capsule | None) -> list[str]:
    return [
        f"{letter}: {one.about.get('device', '?')}, {one.about.get('device name', '?')}, torch "
        f"{one.about.get('torch', '?')}, {one.precision}" + one.partly
        for letter, one in (("A", a), ("B", b))
        if one is not None
    ]
