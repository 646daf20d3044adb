"""docs/clients.md: which frameworks above Megatron were run, with which commands and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

CLIENTS: Final = Path(__file__).resolve().parents[1] / "tests/clients"
#: What the job wrote, and what was typed on a machine with a GPU.
RESULTS: Final = (CLIENTS / "results.json", CLIENTS / "h200.json")

_REASON: Final = "`make clients` runs it, in an hour and with 20 GB of packages"

_INTRODUCTION: Final = """\
# Frameworks above Megatron

What was run, unedited, on a machine without any accelerator, and what came out. `make clients`
installs each framework into an environment of its own, types the commands below, checks the
numbers, and writes this page. The models are tiny and random, in float32; each row of data is the
same, so that the first loss can be compared with that of Transformers' own forward pass on the same
data. It must be within 1e-4, and so must logits; a tensor that was converted there and back must be
equal bit for bit. verl's engine takes half precisions alone: there the loss must be within 2e-2,
and the weights must be the source's, rounded to bfloat16 once.

`accel-bridge run --` before the command is all that differs from a machine with GPUs. Without a
launcher the process is rank 0 of 1.

To convert a checkpoint on a laptop, install the framework and type, for example:

<!-- not run: it wants a framework and a checkpoint; `make clients` runs what is below -->
```console
$ accel-bridge run -- megatron export --model Qwen/Qwen3-0.6B --to_mcore true --output_dir mcore
$ accel-bridge run convert.py
```

The second is a script of your own with Megatron-Bridge's `AutoBridge`. Megatron-Bridge and verl
name dependencies that are built for CUDA alone; the `pip` lines below have what is needed instead.

Processes that a framework starts by itself have the bridge too: ranks of `torchrun`, workers of
Ray, `multiprocessing` of every kind. A Ray cluster that runs already was started without it. Either
start that with `accel-bridge run -- ray start --head`, or give its workers the variable:
`runtime_env={"env_vars": {"ACCEL_BRIDGE_AUTO": "1"}}`. verl loads the bridge by itself where it is
installed, as one of its plugins; `VERL_USE_EXTERNAL_PLUGINS=none` leaves it out.

`accel-bridge run --record FILE -- COMMAND` writes down what each step of any of them computed, and
`accel-bridge parity compare` holds two such files against one another ([parity](parity.md)).

Another framework? `accel-bridge run tests/clients/names.py WHEEL` reads its files, and lists the
names of compiled libraries that it imports and that nothing serves here.
"""


def page() -> str:
    """The page, from the results."""
    parts = [_INTRODUCTION]
    for path in RESULTS:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts += [part for client, entry in table.items() for part in _section(client, entry)]
    return "".join(parts)


def _section(client: str, entry: dict[str, Any]) -> Iterator[str]:
    block = f"<!-- not run: {entry.get('reason', _REASON)} -->\n```console\n"
    versions = ", ".join(f"{name} {number}" for name, number in entry["versions"].items())
    yield f"\n## {client}\n\n{versions}.\n\n"
    if words := entry.get("words"):
        yield f"{words}\n\n"
    if lines := entry.get("installs"):
        yield from (block, *(f"$ pip install {one}\n" for one in lines))
        yield "```\n\n"
    yield "| what | result | PyTorch | date |\n|---|---|---|---|\n"
    for name, step in entry["steps"].items():
        verdict = step["result"] if step["ok"] else f"**failed**: {step['result']}"
        cells = (name, verdict.replace("|", " "), step["torch"], step["date"])
        yield f"| {' | '.join(cells)} |\n"
    yield f"\n{block}"
    yield from (f"$ {step['command']}\n" for step in entry["steps"].values())
    yield "```\n"
