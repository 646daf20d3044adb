"""What the runners of Megatron's programs share: options, start and end of a program, results."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]


def options(about: str | None, names: str) -> argparse.ArgumentParser:
    """Those that take a list of cases.

    :param names: what ``--only`` is searched in.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("checkout", type=lambda text: Path(text).resolve(), metavar="CHECKOUT")
    parser.add_argument("--only", default="", help=f"a regular expression of {names}")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "ascend", "cuda"))
    parser.add_argument("--limit", type=float, default=300, help="seconds of one program")
    parser.add_argument("--warm", action="store_true", help="fork ranks from one parent (CPU)")
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    parser.add_argument("--results", type=Path, help="write results for the page here")
    parser.add_argument("--logs", type=Path, help="keep every run's output in this directory")
    return parser


def environment(checkout: Path, backend: str, *more: str) -> dict[str, str]:
    """For a program of a checkout.

    :param more: directories that it imports from, too.
    """
    paths = [str(checkout), *more, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "ACCEL_BRIDGE_BACKEND": backend,
    }


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    directory: Path,
    output: IO[Any],
    limit: float,
    wait: Callable[[subprocess.Popen[bytes]], int] | None = None,
) -> int:
    """Status of a program, -1 when it took longer; what it started does not outlive it.

    :param limit: seconds.
    :param wait: gives the status of one that need not end.
    """
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return wait(process) if wait else process.wait(limit)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            # torchrun ends its ranks first.
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(10)


def version_of(checkout: Path) -> str:
    """What the checkout's package_info.py spells, or the installed package where it has none."""
    path = checkout / "megatron" / "core" / "package_info.py"
    if not path.is_file():
        return version("megatron-core")
    text = path.read_text(encoding="utf-8")
    found = dict(
        re.findall(r"""^(MAJOR|MINOR|PATCH|PRE_RELEASE) = ['"]?([^'"\n]*)['"]?""", text, re.M)
    )
    return f"{found['MAJOR']}.{found['MINOR']}.{found['PATCH']}{found['PRE_RELEASE']}"


def write_verdicts(path: Path | None, found: Iterable[tuple[dict[str, str], Any]]) -> None:
    """Each verdict (a dataclass) with its names, where a file is asked for."""
    if path is not None:
        told = [names | dataclasses.asdict(verdict) for names, verdict in found]
        path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def write_rows(
    kind: str, options: argparse.Namespace, path: Path, rows: Iterable[Sequence[Any]]
) -> None:
    """A file of tools/compatibility.

    :param rows: (subject, case, verdict) of each.
    """
    sys.path.append(str(ROOT / "tools"))
    from compatibility_results import Row, new_run

    made = [
        Row(
            version_of(options.checkout),
            subject,
            case,
            verdict.outcome,
            reason=verdict.reason,
            seconds=verdict.seconds or None,
        )
        for subject, case, verdict in rows
    ]
    target = "recipes" if kind == "recipes" else "commands"
    command = f"make megatron-{target} MEGATRON=CHECKOUT"
    if options.only:
        command += f" ARGS={shlex.quote(f'--only {shlex.quote(options.only)}')}"
    new_run(kind, options.backend, command, made).write(path)
