"""What the runners of Megatron's programs share: options, start and end of a program, results."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from compatibility_results import Row, new_run  # noqa: E402
from processes import run_group  # noqa: E402

#: How the script is started: what a user types.
ENTRIES: Final = ("module", "run", "auto", "pretrain")

Wait = Callable[["subprocess.Popen[bytes]"], int]


def options(about: str | None) -> argparse.ArgumentParser:
    """Those of every runner."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--backend", default="cpu", choices=("cpu", "ascend", "cuda"))
    parser.add_argument("--limit", type=float, default=300, help="seconds of one program")
    parser.add_argument("--warm", action="store_true", help="forks of one Python (see warm_python)")
    parser.add_argument("--logs", type=Path, help="keep every run's output in this directory")
    text = "results for the page; of several kinds, KIND- comes before the file's name"
    parser.add_argument("--json", type=Path, metavar="FILE", help=text)
    return parser


def python_of(asked: argparse.Namespace, emulated: bool = False) -> str:
    """The interpreter of the programs, this one or the warm one.

    :param emulated: they run on emulated NPUs, whatever the backend is otherwise.
    """
    if not asked.warm:
        return sys.executable
    from warm_python import interpreter

    return interpreter(emulated=emulated or asked.backend == "ascend", cuda=asked.backend == "cuda")


def logs_of(asked: argparse.Namespace, directory: Path) -> Path:
    """Where the logs go: into ``directory`` unless they are kept."""
    logs: Path = (asked.logs or directory / "logs").resolve()
    logs.mkdir(parents=True, exist_ok=True)
    return logs


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
    log: Path,
    limit: float,
    wait: Wait | None = None,
) -> tuple[int, str]:
    """Status of a program, -1 when it took longer, and its log; what it started ends with it.

    :param log: gets the command and its output.
    :param limit: seconds.
    :param wait: gives the status of one that need not end.
    """
    with log.open("w", encoding="utf-8") as stream:
        stream.write(f"{shlex.join(command)}\n")
        stream.flush()
        ended = run_group(
            command, environ, directory, stream, wait or (lambda one: one.wait(limit))
        )
    output = log.read_text(encoding="utf-8", errors="replace")
    if ended is None:
        return -1, f"{output}\nTimeoutError: no end within {limit:.0f} s"
    return ended, output


@dataclass(frozen=True, slots=True)
class Trainer:
    """Starts programs of a Megatron.

    :param checkout: directory with ``megatron`` and, except for ``pretrain``, the script.
    :param entry: one of :data:`ENTRIES`.
    :param python: the interpreter, or the warm one.
    :param limit: seconds after which a training is killed.
    :param wheel: directory of an unpacked Transformer Engine wheel, instead of the installed one.
    :param script: of the checkout.
    """

    checkout: Path
    backend: str = "cpu"
    entry: str = "module"
    python: str = sys.executable
    limit: float = 300
    wheel: Path | None = None
    script: str = "pretrain_gpt.py"

    @property
    def release(self) -> str:
        """Of the wheel; empty without one."""
        found = () if self.wheel is None else distributions(path=[str(self.wheel)])
        return next((one.version for one in found if "engine" in one.name), "")

    def command(self, processes: int, arguments: Sequence[str]) -> list[str]:
        """The command line."""
        script = str(self.checkout / self.script)
        torchrun = [self.python, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(processes)]
        launcher = torchrun if processes > 1 else [self.python]
        bridge = [self.python, "-m", "accel_bridge"]
        command = {
            "module": [*launcher, "-m", "accel_bridge.run", script, *arguments],
            "run": [*bridge, "run", "--", *launcher, script, *arguments],
            "auto": [*launcher, str(Path(__file__).with_name("with_auto.py")), script, *arguments],
            "pretrain": [*bridge, "pretrain", "--nproc-per-node", str(processes), "--", *arguments],
        }[self.entry]
        if self.backend == "ascend":
            command = [*bridge, "emulate-ascend", "--devices", str(processes), "--", *command]
        return command

    def train(
        self,
        processes: int,
        arguments: Sequence[str],
        directory: Path,
        log: Path,
        environ: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Status and output of a training."""
        return self.run(self.command(processes, arguments), directory, log, environ or {})

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        log: Path,
        environ: Mapping[str, str],
        limit: float | None = None,
        wait: Wait | None = None,
    ) -> tuple[int, str]:
        """Status and output of a program; the parameters are those of :func:`run`."""
        wheels = () if self.wheel is None else (str(self.wheel),)
        common = environment(self.checkout, self.backend, *wheels)
        return run(command, common | dict(environ), directory, log, limit or self.limit, wait)


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


def named(word: str) -> tuple[str, Path]:
    """Name and directory of a Megatron, of ``[NAME=]CHECKOUT``."""
    name, _, path = word.rpartition("=")
    checkout = Path(path).resolve()
    return name or version_of(checkout), checkout


def finish(asked: argparse.Namespace, ended: Iterable[tuple[str, Row]]) -> int:
    """A line for each (kind, row) as it ends, then the results; status 1 when one failed."""
    rows: dict[str, list[Row]] = {}
    for kind, row in ended:
        rows.setdefault(kind, []).append(row)
        off = "" if row.value is None else f", off by {row.value:.1e}"
        print(
            f"{row.megatron} {row.subject}, {row.case}: {row.outcome} ({row.seconds} s{off}) "
            f"{row.reason}",
            flush=True,
        )
    for kind, done in rows.items() if asked.json else ():
        script, *words = sys.argv
        line = shlex.join(["python", f"tests/conformance/megatron/{Path(script).name}", *words])
        done.sort(key=lambda row: (row.megatron, row.subject, row.case))
        run = new_run(kind, asked.backend, without_paths(line), done)
        run.write(
            asked.json.with_name(f"{kind}-{asked.json.name}" if len(rows) > 1 else asked.json.name)
        )
    counts = Counter(row.outcome for done in rows.values() for row in done)
    print(dict(counts))
    return int(counts["failed"] > 0)


def without_paths(text: str) -> str:
    """A result without the directories of this machine: only their last parts."""
    return re.sub(r"(?<![\w.])/[\w.@+-]+(/[\w.@+-]+)+", lambda match: Path(match[0]).name, text)
