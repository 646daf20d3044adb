"""The steps of a first run. Each is a child process with a time limit; none stops the others."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from accel_bridge import recording
from accel_bridge.apps import comparison
from accel_bridge.apps.first_run._machine import PARITY_MODEL, PARITY_STEPS, FirstMachine
from accel_bridge.errors import BridgeError

#: Made on a CPU by tools/first_run_recording.py.
SHIPPED: Final = Path(__file__).with_name("cpu.rec")
#: Seconds that all steps together may take.
TOTAL: Final = 570
_LINES: Final = 12


@dataclass(slots=True)
class Result:
    """What became of a step.

    :param verdict: ``passed``, ``failed`` or ``out of time``.
    :param evidence: the last lines it printed, or what it found.
    """

    name: str
    verdict: str
    seconds: float
    summary: str
    evidence: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there is nothing to fix."""
        return self.verdict == "passed"


@dataclass(frozen=True, slots=True)
class _Ran:
    status: int | None
    seconds: float
    output: str
    tail: list[str]


class Steps:
    """The steps on one machine, with their files in one folder."""

    def __init__(self, machine: FirstMachine, folder: Path, total: float = TOTAL) -> None:
        self.machine = machine
        self.folder = folder
        self._until = time.monotonic() + total
        self._environ = {
            **os.environ,
            **machine.environ,
            "ACCEL_BRIDGE_BACKEND": machine.backend,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }

    def run(self, told: Callable[[Result], None]) -> list[Result]:
        """All steps, one after the other; ``told`` hears of each as it ends."""
        results = []
        for step in (
            self._versions,
            self._doctor,
            self._parity,
            self._throughput,
            self._tolerances,
        ):
            result = step()
            told(result)
            results.append(result)
        return results

    def _versions(self) -> Result:
        ran = self._child("env", 60, "env", "--json")
        found = _json(ran.output)
        if ran.status != 0 or found is None:
            return _broken("versions", ran)
        (self.folder / "env.json").write_text(ran.output)
        names = ("torch", "megatron-core", "torch-npu")
        packages = found.get("packages", {})
        versions = ", ".join(f"{name} {packages[name]}" for name in names if packages.get(name))
        return Result("versions", "passed", ran.seconds, versions)

    def _doctor(self) -> Result:
        ran = self._child("doctor", 120, "doctor", "--json")
        found = _json(ran.output)
        if ran.status not in (0, 1) or found is None:
            return _broken("doctor", ran)
        (self.folder / "doctor.json").write_text(ran.output)
        rows = [one for check in found["checks"] for one in check["findings"]]
        fails = [one["what"] for one in rows if one["verdict"] == "would fail"]
        warns = sum(one["verdict"] == "warning" for one in rows)
        verdict = "failed" if fails else "passed"
        return Result(
            "doctor", verdict, ran.seconds, f"{len(fails)} faults, {warns} warnings", fails
        )

    def _parity(self) -> Result:
        """A recording of this machine, against the CPU's that came with the package."""
        began = time.monotonic()
        mine = self.folder / "first-run.rec"
        ran = self._record("parity", mine, 180, PARITY_MODEL, 1)
        if ran.status != 0:
            return _broken("parity", ran)
        note = "the recording that is shipped"
        try:
            found = comparison.compare(
                recording.read(SHIPPED), recording.read(mine), None, ("shipped", "here", "")
            )
        except comparison.NotComparable as different:
            # Another Megatron draws other batches, so the CPU of this machine trains them.
            note = f"a recording of this machine's CPU ({different.evidence[0]})"
            other = self.folder / "cpu.rec"
            ran = self._record(
                "parity-cpu", other, 180, PARITY_MODEL, 1, {"ACCEL_BRIDGE_BACKEND": "cpu"}
            )
            if ran.status != 0:
                return _broken("parity", ran)
            try:
                found = comparison.compare(
                    recording.read(other), recording.read(mine), None, ("CPU", "here", "")
                )
            except BridgeError as error:
                return Result(
                    "parity", "failed", time.monotonic() - began, error.what, list(error.evidence)
                )
        document = json.dumps(comparison.as_json(found), indent=1, default=str)
        (self.folder / "parity.json").write_text(document)
        (self.folder / "parity.html").write_text(comparison.as_html(found, None))
        lines = comparison.verdict(found)
        verdict = "passed" if found.passed else "failed"
        summary = f"{PARITY_STEPS} steps against {note}: {lines[1]}"
        return Result("parity", verdict, time.monotonic() - began, summary, lines)

    def _throughput(self) -> Result:
        """Tokens in a second of a Llama-like model in bfloat16, for each layout."""
        began = time.monotonic()
        rows: list[dict[str, Any]] = []
        problems: list[str] = []
        size = self.machine.size
        for name, ranks, tensor in self.machine.layouts():
            path = self.folder / f"speed-{ranks}-{tensor}.rec"
            ran = self._record(path.stem, path, 120, size.words(ranks, tensor), ranks)
            if ran.status != 0:
                problems += [f"{name}: {line}" for line in _broken(name, ran).evidence[-3:]]
                continue
            found = recording.read(path)
            tokens = size.micro_batch * size.sequence * (ranks // tensor)
            rows.append(
                {
                    "layout": name,
                    "devices": ranks,
                    "seconds per step": found.seconds,
                    "tokens per second": tokens / found.seconds,
                    "TFLOP/s per device": tokens / found.seconds * size.operations() / ranks / 1e12,
                    "loss": found.steps[-1].loss,
                }
            )
        best = max((row["tokens per second"] for row in rows), default=0.0)
        verdict = "failed" if problems or not rows else "passed"
        return Result(
            "throughput",
            verdict,
            time.monotonic() - began,
            f"{best:.0f} tokens/s at best, {len(rows)} layouts",
            problems,
            rows,
        )

    def _tolerances(self) -> Result:
        """Every kernel against its float64 reference; last, because it takes what is left."""
        ran = self._child("tolerances", 240, "parity", "kernels", "--json")
        found = _json(ran.output)
        if found is None or ran.status not in (0, 1):
            return _broken("tolerances", ran)
        (self.folder / "tolerances.json").write_text(ran.output)
        verdict = "passed" if ran.status == 0 else "failed"
        return Result("tolerances", verdict, ran.seconds, str(found.get("verdict", "")))

    def _record(
        self,
        name: str,
        out: Path,
        seconds: float,
        words: str,
        ranks: int,
        environ: Mapping[str, str] | None = None,
    ) -> _Ran:
        options = ["--out", str(out), "--nproc-per-node", str(ranks), "--"]
        return self._child(
            name, seconds, "parity", "record", *options, *words.split(), **environ or {}
        )

    def _child(self, name: str, seconds: float, *words: str, **environ: str) -> _Ran:
        """Run one of our commands; its output is kept in NAME.log."""
        command = [sys.executable, "-m", "accel_bridge", *words]
        began = time.monotonic()
        seconds = max(1.0, min(seconds, self._until - began))
        log = self.folder / f"{name}.log"
        with log.open("w") as errors:
            print(shlex.join(command), file=errors, flush=True)
            child = subprocess.Popen(
                command,
                env={**self._environ, **environ},
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            try:
                output, _ = child.communicate(timeout=seconds)
                status: int | None = child.returncode
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                output, _ = child.communicate()
                status = None
            except BaseException:
                os.killpg(child.pid, signal.SIGTERM)
                raise
        text = log.read_text(errors="replace")
        if not output.startswith("{"):
            text += output
            log.write_text(text)
        return _Ran(status, time.monotonic() - began, output, text.splitlines()[-_LINES:])


def _broken(name: str, ran: _Ran) -> Result:
    """The result of a child that did not do its work."""
    if ran.status is None:
        return Result(
            name, "out of time", ran.seconds, f"ended after {ran.seconds:.0f} s", ran.tail
        )
    return Result(name, "failed", ran.seconds, f"ended with status {ran.status}", ran.tail)


def _json(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def table(results: list[Result]) -> Iterator[tuple[str, str, str, str]]:
    """A row for each step: its name, verdict, seconds and summary."""
    for one in results:
        yield one.name, one.verdict, f"{one.seconds:.0f} s", one.summary
