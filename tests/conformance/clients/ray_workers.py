"""Ray: the bridge in workers that Ray starts, and in what they start."""

from __future__ import annotations

import ast
import re
from typing import Final

from conformance.clients.steps import Client, Failed, Step, Work

PLACES: Final = ("task", "actor", "fork in an actor", "fork", "spawn", "forkserver")


def everywhere(work: Work, printed: str) -> str:
    """Each place is a process of its own, has the bridge, and Megatron found the shim."""
    rows = dict(re.findall(r"^FOUND ([a-z ]+) (\{.*\})$", printed, re.MULTILINE))
    found = {place: ast.literal_eval(row) for place, row in rows.items()}
    for place in PLACES:
        row = found.get(place)
        if row is None:
            raise Failed(f"nothing came from {place}")
        if not row["active"] or row["device"] != "cpu":
            raise Failed(f"{place}: {row}")
    processes = {row["process"] for row in found.values()}
    if len(processes) < len(PLACES) - 1:  # a task and an actor may share a worker
        raise Failed(f"{len(processes)} processes for {len(PLACES)} places")
    return f"active in {len(processes)} processes: {', '.join(PLACES)}"


RAY: Final = Client(
    name="Ray",
    installs=("ray==2.60.0 megatron-core==0.19.2 einops",),
    shown=("ray", "megatron-core", "torch"),
    steps=(
        Step("workers", "accel-bridge run -- python workers.py", everywhere),
        Step("workers by ACCEL_BRIDGE_AUTO", "ACCEL_BRIDGE_AUTO=1 python workers.py", everywhere),
    ),
)
