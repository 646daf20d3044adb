"""One cell of the matrix: a Megatron, a model, a precision, a layout; trained and judged."""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import megatron_programs
from layouts import ALL, COMMON, LAYOUTS, MODELS, PRECISIONS, REFUSALS, RESUMED, SAVED, Layout
from recipe_verdicts import errors, losses_in

#: How the script is started: what a user types.
ENTRIES: Final = ("module", "run", "auto", "pretrain")


@dataclass(frozen=True, slots=True)
class Trainer:
    """Starts a Megatron's training.

    :param checkout: directory with ``megatron`` and, except for ``pretrain``, pretrain_gpt.py.
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
        gpus: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Status and output of a training."""
        environ = dict(environ or {}) | ({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})
        return self.run(self.command(processes, arguments), directory, environ, self.limit)

    def run(
        self, command: Sequence[str], directory: Path, environ: Mapping[str, str], limit: float
    ) -> tuple[int, str]:
        """Status and output of a program; what it started does not outlive it."""
        wheels = () if self.wheel is None else (str(self.wheel),)
        environment = megatron_programs.environment(self.checkout, self.backend, *wheels)
        with tempfile.TemporaryFile() as file:
            status = megatron_programs.run(
                command, environment | dict(environ), directory, file, limit
            )
            file.seek(0)
            output = file.read().decode(errors="replace")
        if status == -1:
            output += f"\nTimeoutError: no end within {limit:.0f} s"
        return status, output


@dataclass(slots=True)
class Chain:
    """One model in one Megatron: a start that is saved, and the layouts that go on from it.

    :ivar reference: trains the start and the one process that all are compared with; None: as all.
    """

    trainer: Trainer
    version: str
    model: str
    precision: str
    logs: Path
    directory: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    #: Why there is no checkpoint; empty when there is one.
    broken: str = "not started"
    #: The training of one process from the checkpoint on.
    one: Cell | None = None

    @property
    def subject(self) -> str:
        """What the results call it."""
        entry = "" if self.trainer.entry == "module" else f", {self.trainer.entry}"
        release = f", Transformer Engine {self.trainer.release}" if self.trainer.release else ""
        return f"{self.model} {self.precision}{entry}{release}"

    def start(self, gpus: str = "") -> Cell:
        """Train in one process and save; then go on from there, which is the reference."""
        save = ["--exit-interval", str(SAVED), "--save", self._path("start")]
        save += ["--save-interval", str(SAVED)]
        status, output = self._train("start", Layout(1), save, gpus)
        self.broken = error_in(status, output, (), {})
        self.one = self.run("one", gpus)
        self.broken = self.broken or self.one.error
        return self.one

    def run(self, name: str, gpus: str = "") -> Cell:
        """Train a layout and compare it with one process."""
        if name == "one" and self.one is not None:
            return self.one
        began = time.monotonic()
        layout = LAYOUTS[name]
        error, losses, difference = self.broken, dict[int, float](), None
        if not error:
            error, losses, difference = self._judged(name, layout, gpus)
            if layout.wrong:
                found = error.startswith("off by")
                error = "" if found else f"an injected fault was not found: {error or difference}"
        refusal = self._refusal(name, error)
        seconds = round(time.monotonic() - began, 1)
        return Cell(self, name, seconds, losses, difference, error, refusal)

    def _judged(
        self, name: str, layout: Layout, gpus: str
    ) -> tuple[str, dict[int, float], float | None]:
        """Error, losses and largest difference."""
        tolerance = PRECISIONS[self.precision][1]
        # 0.12 refuses the generators of another layout, and the states of another optimizer: they
        # begin anew in every layout. A resume in the same layout takes everything.
        load = ["--load", self._path("start"), "--no-load-rng", "--no-load-optim"]
        steps = range(SAVED + 2, ALL + 1)
        if layout.resumes:
            own = ["--save", self._path(name), "--save-interval", str(RESUMED)]
            load += [*own, "--exit-interval", str(RESUMED)]
            status, output = self._train(f"{name}-save", layout, load, gpus)
            before = losses_in(output)
            error = error_in(status, output, range(SAVED + 2, RESUMED + 1), before)
            if error:
                return error, before, None
            load, steps = ["--load", self._path(name)], range(RESUMED + 2, ALL + 1)
            layout = replace(layout, arguments=layout.then or layout.arguments)
        status, output = self._train(name, layout, load, gpus)
        losses = losses_in(output)
        error = error_in(status, output, steps, losses)
        reference = self.one.losses if self.one else losses
        difference = max(
            (abs(losses[step] - reference[step]) for step in steps if step in losses), default=None
        )
        if not error and (difference is None or difference > tolerance):
            error = f"off by {difference}"
        return error, losses, difference

    def _train(self, name: str, layout: Layout, more: Sequence[str], gpus: str) -> tuple[int, str]:
        words = [*COMMON, *MODELS[self.model], *PRECISIONS[self.precision][0].split()]
        words += ["--train-iters", str(ALL), *layout.arguments.split(), *more]
        directory = Path(self.directory.name)
        environ = {"ACCEL_BRIDGE_PATCHES": layout.patches} if layout.patches else {}
        status, output = self.trainer.train(layout.processes, words, directory, gpus, environ)
        log = f"{self.version}-{self.trainer.backend}-{self.trainer.entry}{self.trainer.release}"
        log = f"{log}-{self.model}-{self.precision}-{name}.log"
        (self.logs / log).write_text(f"{' '.join(words)}\nstatus {status}\n{output}", "utf-8")
        return status, output

    def _path(self, name: str) -> str:
        return str(Path(self.directory.name) / name)

    def _refusal(self, layout: str, error: str) -> str:
        """The reviewed refusal that an error stands for; empty when there is none."""
        found = (
            reason
            for (model, name, words), reason in REFUSALS.items()
            if (model, name) == (self.model, layout) and words in error
        )
        return next(found, "")


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a layout."""

    chain: Chain
    layout: str
    seconds: float
    losses: Mapping[int, float]
    difference: float | None
    error: str
    refusal: str = ""

    @property
    def outcome(self) -> str:
        """As the results call it."""
        return "passed" if not self.error else "refused" if self.refusal else "failed"


def error_in(status: int, output: str, steps: Sequence[int], losses: Mapping[int, float]) -> str:
    """What went wrong in a training that should have printed these steps; empty: nothing.

    The first line after a load may hold a mean over two iterations: it is none of the steps.
    """
    if status or any(step not in losses for step in steps):
        return f"status {status}: {_told(output)[:300]}"
    if not all(math.isfinite(losses[step]) for step in steps):
        return "a loss is not finite"
    return ""


def _told(output: str) -> str:
    """The line that says most: the bridge's error with its evidence, else the last error."""
    told, raised = errors(output)
    if told:
        return " ".join(line.strip() for line in told[-1].splitlines()[:2])
    return (raised or output.strip().splitlines() or ["no output"])[-1].strip()
