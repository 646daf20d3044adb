"""Recordings of trainings, with an injected error or without."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import megatron_programs
from cells import error_in
from warm_python import interpreter

from accel_bridge.recording import Recording, read


def record(
    out: Path,
    words: Sequence[str],
    *,
    options: Sequence[str] = (),
    checkout: Path | None = None,
    error: str = "",
) -> Recording | str:
    """The recording of a training on the CPU, or the last line of what was said instead.

    :param options: of ``accel-bridge parity record``.
    :param checkout: a Megatron's; None: the installed one.
    :param error: of `injected_limits`.
    """
    environ = megatron_programs.environment(checkout or Path(__file__).parent, "cpu")
    environ["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parent}"
    environ |= {"ACCEL_BRIDGE_PLUGINS": "injected_limits" if error else "", "INJECTED_ERROR": error}
    out.parent.mkdir(exist_ok=True)
    command = [interpreter(), "-m", "accel_bridge", "parity", "record", "--out", str(out)]
    command += [*options, "--", *words]
    log = out.with_suffix(".log")
    status, output = megatron_programs.run(command, environ, out.parent, log, 600)
    if status == 0:
        return read(out)
    out.unlink(missing_ok=True)
    told = output.partition("accel-bridge: error: The training run failed")[0]
    return error_in(status, told, (), {})[:160]
