"""Results of runs on other Megatrons: the files of tools/compatibility, read and written.

A file is one command on one machine:

    {"format": 1, "kind": "matrix", "date": "2026-11-22T11:20Z", "commit": "a4abb9b",
     "machine": "2 CPU cores", "backend": "cpu",
     "versions": {"python": "3.12.1", "torch": "2.13.0"},
     "command": "python tests/conformance/megatron/matrix.py ...",
     "rows": [{"megatron": "0.12.1", "subject": "dense fp32", "case": "tp2-sp",
               "outcome": "passed", "value": 0.0, "seconds": 5.1}, ...]}

docs/compatibility.md is made from all of them; a cell that several runs have is the newest run's.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import json_lines

ROOT: Final = Path(__file__).resolve().parents[1]
DIRECTORY: Final = ROOT / "tools" / "compatibility"
FORMAT: Final = 1

#: Kinds of runs, in the page's order -> what they are.
KINDS: Final = {
    "matrix": "Layouts",
    "suite": "Unit tests",
    "recipes": "Functional recipes",
    "models": "Models",
    "features": "What main has since 0.19",
    "training": "Ways to train",
    "tools": "Tools and scripts",
}

#: What may come of a case -> what that means.
OUTCOMES: Final = {
    "passed": "it works; compared numbers are right",
    "refused": "stopped at its arguments, with the reason",
    "unclaimed": "it needs what the bridge does not claim",
    "harness": "data, network, package or machine missing",
    "upstream": "it fails without the bridge too",
    "failed": "it should work",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one case, or of ``count`` cases that share everything here.

    :param megatron: its version, or ``main``.
    :param subject: what was run: ``dense fp32``, ``transformer/moe``, ``Mamba``.
    :param case: how: ``tp2-sp``, ``world 2``, a recipe's name, a command.
    :param outcome: a key of :data:`OUTCOMES`.
    :param reason: why it did not pass; a few words that many rows share.
    :param value: the largest difference that was seen, where numbers were compared.
    """

    megatron: str
    subject: str
    case: str
    outcome: str
    count: int = 1
    reason: str = ""
    value: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One command on one machine.

    :param date: ISO 8601, UTC, to the minute.
    :param machine: ``2 CPU cores``, ``8 x NVIDIA H100 80GB HBM3, 128 CPU cores``.
    :param backend: ``cpu``, ``cuda``, ``ascend (emulated)``.
    :param versions: package -> version; ``python`` among them.
    """

    kind: str
    date: str
    commit: str
    machine: str
    backend: str
    versions: dict[str, str]
    command: str
    rows: Sequence[Row] = field(default_factory=tuple)

    def write(self, path: Path) -> None:
        """As JSON, with a line for each row; what a row leaves at its default is left out."""
        document = {one.name: getattr(self, one.name) for one in fields(self)}
        document = {"format": FORMAT, **document, "rows": [_given(row) for row in self.rows]}
        path.write_text(json_lines.dumps(document, 2) + "\n", encoding="utf-8")


def _given(row: Row) -> dict[str, Any]:
    values = {one.name: getattr(row, one.name) for one in fields(row)}
    return {one.name: values[one.name] for one in fields(row) if values[one.name] != one.default}


def read(path: Path) -> Run:
    """A file of this format.

    :raises ValueError: it is of another format, or a row says what no row may say.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.pop("format", None) != FORMAT:
        raise ValueError(f"{path}: not of format {FORMAT}")
    try:
        rows = [Row(**row) for row in document.pop("rows")]
        run = Run(**document, rows=rows)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if run.kind not in KINDS:
        raise ValueError(f"{path}: kind {run.kind!r} is none of {', '.join(KINDS)}")
    for row in rows:
        if row.outcome not in OUTCOMES:
            raise ValueError(f"{path}: outcome {row.outcome!r} of {row}")
        if row.outcome != "passed" and not row.reason:
            raise ValueError(f"{path}: {row} has no reason")
    return run


def runs(directory: Path = DIRECTORY) -> list[Run]:
    """Every committed run, oldest first."""
    return sorted(map(read, sorted(directory.glob("*.json"))), key=lambda run: run.date)


def new_run(kind: str, backend: str, command: str, rows: Iterable[Row]) -> Run:
    """A run that ended now, on this machine.

    :param backend: as ``ACCEL_BRIDGE_BACKEND`` says it.
    """
    return Run(
        kind=kind,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        commit=_commit(),
        machine=machine(backend),
        backend="ascend (emulated)" if backend == "ascend" else backend,
        versions=versions(),
        command=command,
        rows=tuple(rows),
    )


#: Packages whose versions a run notes.
_NOTED: Final = ("torch", "torch_npu", "numpy", "einops", "transformers")


def versions() -> dict[str, str]:
    """Of this interpreter and of the packages that it sees."""
    found = {"python": platform.python_version()}
    for name in _NOTED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine(backend: str) -> str:
    """This machine in words, without its name."""
    cores = f"{os.cpu_count()} CPU cores"
    if backend != "cuda" or shutil.which("nvidia-smi") is None:
        return cores
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return f"{len(names)} x {names[0]}, {cores}" if names else cores


def _commit() -> str:
    """Of the checkout, or what BRIDGE_COMMIT says where a copy has no history."""
    commit = os.environ.get("BRIDGE_COMMIT")
    if commit:
        return commit
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"
