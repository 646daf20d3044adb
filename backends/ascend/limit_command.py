"""``accel-bridge ascend-limits``: what this NPU contradicts in the table of limits."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from accel_bridge.backends.ascend.limits import here
from accel_bridge.process.outputs import write_output
from accel_bridge.process.parser import Parser


def main(argv: Sequence[str]) -> int:
    """Walk, and say what the device contradicts; the exit status is 1 where it does."""
    parser: argparse.ArgumentParser = Parser(
        prog="accel-bridge ascend-limits",
        description="Tries both sides of every limit in the table (docs/ascend.md) on this NPU.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every call")
    arguments = parser.parse_args(argv)
    # A refusal is raised by its own call, and leaves nothing on the device's queue.
    os.environ["ASCEND_LAUNCH_BLOCKING"] = "1"
    import torch_npu  # noqa: F401  (it puts its operators into torch)

    from accel_bridge.backends.ascend.limit_walk import walk

    rules = here()
    steps = list(walk(rules))
    wrong = [step for step in steps if step.contradicts]
    for step in wrong:
        print(step.text)
    print(
        f"{len(steps)} calls at the edges of {len(rules.limits)} limits, {rules.chip} with CANN "
        f"{rules.cann}: {len(wrong)} contradicted"
    )
    if arguments.json:
        calls = [{**asdict(one), "text": one.text} for one in steps]
        found = {"chip": rules.chip, "cann": rules.cann, "calls": calls}
        write_output(arguments.json, f"{json.dumps(found, indent=1)}\n".encode(), option="--json")
    return 1 if wrong else 0
