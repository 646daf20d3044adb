"""Recordings of trainings, with an injected error or without, and what departs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import megatron_programs
from cells import error_in
from warm_python import interpreter

from accel_bridge.apps.comparison import NotComparable, compare
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

    :param out: what is there already is taken.
    :param options: of ``accel-bridge parity record``.
    :param checkout: a Megatron's; None: the installed one.
    :param error: of `parity.injected`.
    """
    if out.exists():
        return read(out)
    tests = megatron_programs.ROOT / "tests"
    environ = megatron_programs.environment(checkout or tests, "cpu", str(tests))
    environ |= {"ACCEL_BRIDGE_PLUGINS": "parity.injected" if error else "", "INJECTED_ERROR": error}
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


def departs(a: Recording, b: Recording) -> str:
    """What departs first, and by how much; empty for nothing."""
    try:
        found = compare(a, b)
    except NotComparable as error:
        return f"not comparable: {'; '.join(error.evidence)}"
    if found.passed:
        return ""
    if found.first is None:
        row = found.first_row
        return "the loss or the gradient norm" + (f" at step {row.a.number}" if row else "")
    return f"{found.first.where}: {found.first.size:.1g}, limit {found.first.limit:.1g}"
