"""``accel-bridge first-run``: what a new machine shows, in one file to send back.

Its steps are commands that anybody can type; each is a child process with a time limit, and none
stops the others.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accel_bridge import __version__, recording
from accel_bridge.apps.cli._output import add_json_flag, only_stderr, print_json
from accel_bridge.bridge.selection import select_here
from accel_bridge.device.backend import environment_of
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.outputs import check_output, holds, write_output
from accel_bridge.process.parser import Parser

#: Name of the first member, by which an earlier file is recognized.
MARK: Final = "accel-bridge-first-run.txt"
#: Seconds that all steps together may take.
TOTAL: Final = 570
#: Bytes of a member; of a longer file, the end is kept.
_MOST: Final = 1 << 24
_LINES: Final = 12

_GPT: Final = (
    "--mock-data --tokenizer-type NullTokenizer --position-embedding-type rope --normalization "
    "RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --eval-iters 0 "
    "--eval-interval 1000 --log-interval 1 "
)
#: What this machine trains beside its CPU; no two devices draw the same dropout masks.
PARITY: Final = (
    f"{_GPT} --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 4 --vocab-size 255 "
    "--make-vocab-size-divisible-by 128 --lr 1e-3 --seed 1234 --train-iters 20 "
    "--hidden-dropout 0 --attention-dropout 0"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the run is made on.

    :param title: the backend's name for people; says EMULATED where it is.
    :param devices: how many there are; 1 for a CPU.
    :param environ: variables that the backend needs before torch.
    :param trials: the backend's own steps.
    """

    backend: str
    title: str
    why: str
    devices: int
    environ: Mapping[str, str]
    trials: tuple[tuple[str, float, tuple[str, ...]], ...] = ()

    @property
    def real(self) -> bool:
        """Whether speed on it means anything."""
        return self.backend != "cpu" and "EMULATED" not in self.title


def look(requested: str | None, environ: Mapping[str, str] = os.environ) -> Machine:
    """The machine that a program would run on.

    :param requested: name of a backend; None: the one a program would get.
    :raises BridgeError: there is none.
    """
    selection = select_here(requested, environ)
    chosen = selection.chosen
    devices = [one.probe.devices for one in selection.probes if one.backend.name == chosen.name]
    count = (devices[0] if devices else None) or 1
    environ = environment_of(chosen)
    return Machine(chosen.name, chosen.title, selection.why, count, environ, chosen.trials)


def steps(machine: Machine) -> Iterator[tuple[str, float, list[str], str]]:
    """(name, seconds it may take, words of accel-bridge, backend) of each step, in their order."""
    record = ["parity", "record", "--nproc-per-node"]
    yield "versions", 60, ["env"], machine.backend
    yield "doctor", 120, ["doctor"], machine.backend
    for out, backend in (("cpu.rec", "cpu"), ("here.rec", machine.backend)):
        argv = [*record, "1", "--out", out, "--", *PARITY.split()]
        yield f"train-{Path(out).stem}", 120, argv, backend
    compare = ["parity", "compare", "cpu.rec", "here.rec", "--html", "parity.html"]
    yield "parity", 60, compare, machine.backend
    if machine.devices > 1:
        # Every collective of a layer: a rank in another's place is another loss.
        split = [*PARITY.split(), "--tensor-model-parallel-size", "2", "--sequence-parallel"]
        for out, backend in (("cpu-2.rec", "cpu"), ("here-2.rec", machine.backend)):
            argv = [*record, "2", "--out", out, "--", *split]
            yield f"train-{Path(out).stem}", 120, argv, backend
        yield "parity-2", 60, ["parity", "compare", "cpu-2.rec", "here-2.rec"], machine.backend
    for name, seconds, own in machine.trials:
        yield name, seconds, list(own), machine.backend
    yield "kernels", 60, ["parity", "kernels", "--speed", "kernels.json"], machine.backend
    for ranks, tensor in layouts(machine):
        argv = [*record, f"{ranks}", "--out", f"speed-{ranks}-{tensor}.rec", "--"]
        argv += speed_model(machine.real, ranks, tensor).split()
        yield f"speed-{ranks}-{tensor}", 120, argv, machine.backend
    # Last, because it takes what is left.
    yield "tolerances", 240, ["parity", "kernels"], machine.backend


def layouts(machine: Machine) -> list[tuple[int, int]]:
    """(processes, tensor parallel size) of the trainings whose speed is measured."""
    return [(1, 1), *([(machine.devices, 1), (2, 2)] if machine.devices > 1 else [])]


def speed_model(real: bool, ranks: int, tensor: int) -> str:
    """A Llama-like model in bfloat16: one for 16 GB, or what a CPU manages in seconds."""
    layers, hidden, heads, length, steps = (8, 2048, 16, 2048, 12) if real else (2, 64, 4, 64, 6)
    parallel = f"--tensor-model-parallel-size {tensor}"
    return (
        f"{_GPT} --num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} "
        f"--ffn-hidden-size {-(-8 * hidden // 3 // 64) * 64} --seq-length {length} "
        f"--max-position-embeddings {length} --micro-batch-size 2 "
        f"--global-batch-size {2 * ranks // tensor} --vocab-size 32000 --bf16 --lr 1e-4 "
        f"--train-iters {steps} {parallel}{' --sequence-parallel' if tensor > 1 else ''}"
    )


def speeds(machine: Machine, directory: Path) -> list[dict[str, Any]]:
    """What the recordings in ``directory`` say of speed: a row for each layout."""
    rows = []
    for ranks, tensor in layouts(machine):
        path = directory / f"speed-{ranks}-{tensor}.rec"
        if path.is_file():
            found = recording.read(path)
            sequences = 2 * (ranks // tensor)
            length = int(found.arguments["seq_length"])
            rows.append(
                {
                    "devices": ranks,
                    "tensor parallel": tensor,
                    "seconds per step": found.seconds,
                    "tokens per second": sequences * length / found.seconds,
                    "loss": found.steps[-1].loss,
                }
            )
    return rows


def run(machine: Machine, directory: Path, total: float = TOTAL) -> Iterator[dict[str, Any]]:
    """Every step, one after the other; its output is ``NAME.log`` in ``directory``.

    What became of it: ``passed``, ``failed`` or ``out of time``, and the last lines it printed.
    """
    until = time.monotonic() + total
    for name, limit, argv, backend in steps(machine):
        command = [sys.executable, "-m", "accel_bridge", *argv]
        environ = {**os.environ, **machine.environ, "ACCEL_BRIDGE_BACKEND": backend}
        began = time.monotonic()
        log = directory / f"{name}.log"
        with log.open("w") as output:
            print(shlex.join(command), file=output, flush=True)
            child = subprocess.Popen(
                command,
                env={**environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                cwd=directory,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                verdict = "failed" if child.wait(max(1.0, min(limit, until - began))) else "passed"
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                verdict = "out of time"
            except BaseException:
                os.killpg(child.pid, signal.SIGTERM)
                raise
        tail = log.read_text(errors="replace").splitlines()[-_LINES:]
        took = time.monotonic() - began
        yield {"name": name, "verdict": verdict, "seconds": took, "evidence": tail}


def as_text(document: dict[str, Any]) -> str:
    lines = [
        f"accel_bridge {document['accel_bridge']}, first run on {document['title']}, "
        f"{document['devices']} device(s)",
        f"chosen: {document['chosen']}",
        "",
    ]
    for one in document["steps"]:
        last = (one["evidence"] or [""])[-1]
        lines.append(f"{one['name']:<12} {one['verdict']:<12}{one['seconds']:>5.0f} s  {last}")
    if not document["speed_means_something"]:
        lines += ["", "no real device: the speed shows that it runs, not how fast"]
    for row in document["speed"]:
        lines.append(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    for row in document["kernels"]:
        share = f"{row['share of roofline']:.0%}" if row["roofline"] else "no roofline is known"
        lines.append(f"{row['kernel']} ({row['call']}): {row['seconds'] * 1e3:.3f} ms, {share}")
    for row in document["contradicted"]:
        lines.append(f"contradicts the table: {row['text']}")
    for one in document["steps"]:
        if one["verdict"] != "passed":
            lines += ["", f"{one['name']} {one['verdict']}:", *one["evidence"]]
    return "\n".join(lines) + "\n"


def _left(directory: Path, name: str) -> Any:
    """A file of JSON that a step left, or nothing."""
    path = directory / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def pack(document: dict[str, Any], directory: Path) -> bytes:
    """The file to send: the report, and everything in ``directory``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(MARK, as_text(document))
        packed.writestr("report.json", json.dumps(document, indent=1))
        for path in sorted(directory.glob("*")):
            if path.is_file():
                packed.writestr(path.name, path.read_bytes()[-_MOST:])
    return stream.getvalue()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge first-run",
        description="For a machine that nobody has tried yet: versions, `doctor`, a training of "
        "20 steps beside the same on this machine's CPU, throughput, and every kernel against "
        "its reference. Takes less than ten minutes and leaves one file to send back. Ends with "
        "status 1 when a step fails; the others run all the same.",
        allow_abbrev=False,
    )
    default = Path("accel-bridge-first-run.zip")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=default, help="the file (%(default)s)"
    )
    parser.add_argument("--backend", metavar="NAME", help="default: the one a program would get")
    add_json_flag(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the steps, write the file, say what was found."""
    arguments = _parser().parse_args(argv)
    recording.check_zstd()
    check_output(arguments.out, option="--out", made=holds(MARK.encode()))
    with only_stderr(), tempfile.TemporaryDirectory(prefix="accel-bridge-first-run-") as name:
        machine, directory, steps = look(arguments.backend), Path(name), []
        print(f"first run on {machine.title}: up to ten minutes", file=sys.stderr, flush=True)
        for one in run(machine, directory):
            steps.append(one)
            line = f"{one['name']}: {one['verdict']} ({one['seconds']:.0f} s)"
            print(printable(line), file=sys.stderr, flush=True)
        failed = [one for one in steps if one["verdict"] != "passed"]
        calls = _left(directory, "limits.json").get("calls", [])
        document = {
            "accel_bridge": __version__,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "backend": machine.backend,
            "title": machine.title,
            "chosen": machine.why,
            "devices": machine.devices,
            "speed_means_something": machine.real,
            "passed": not failed,
            "steps": steps,
            "speed": speeds(machine, directory),
            "kernels": _left(directory, "kernels.json") or [],
            "contradicted": [row for row in calls if row["contradicts"]],
        }
        write_output(arguments.out, pack(document, directory), option="--out")
    if arguments.json:
        print_json(lambda: document)
    else:
        print(printable(as_text(document), keep="\n"))
        print(f"please send this file back: {arguments.out}")
    if failed:
        raise BridgeError(
            f"{len(failed)} of {len(steps)} steps of the first run failed: "
            f"{', '.join(one['name'] for one in failed)}",
            evidence=[f"{one['name']}: {(one['evidence'] or ['no output'])[-1]}" for one in failed],
            next=f"send {arguments.out} back all the same; it holds each step's log",
            exit_code=1,
        )
    return 0
