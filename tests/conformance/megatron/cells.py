"""One cell of the matrix: a Megatron, a model, a precision, a layout; trained and judged."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from layouts import ALL, COMMON, LAYOUTS, MODELS, PRECISIONS, REFUSALS, RESUMED, SAVED, Layout
from megatron_programs import Row, Trainer, without_paths
from recipe_verdicts import errors, losses_in


@dataclass(slots=True)
class Chain:
    """One model in one Megatron: a start that is saved, and the layouts that go on from it."""

    trainer: Trainer
    version: str
    model: str
    precision: str
    logs: Path
    directory: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    #: Why there is no checkpoint; empty when there is one.
    broken: str = "not started"
    #: The training of one process from the checkpoint on, and its losses.
    one: Row | None = None
    losses: Mapping[int, float] | None = None

    @property
    def subject(self) -> str:
        """What the results call it."""
        entry = "" if self.trainer.entry == "module" else f", {self.trainer.entry}"
        release = f", Transformer Engine {self.trainer.release}" if self.trainer.release else ""
        return f"{self.model} {self.precision}{entry}{release}"

    def start(self, gpus: str = "") -> Row:
        """Train in one process and save; then go on from there, which is the reference."""
        save = ["--exit-interval", str(SAVED), "--save", self._path("start")]
        save += ["--save-interval", str(SAVED)]
        status, output = self._train("start", Layout(1), save, gpus)
        self.broken = error_in(status, output, (), {})
        self.one = self.run("one", gpus)
        self.broken = self.broken or self.one.reason
        return self.one

    def run(self, name: str, gpus: str = "") -> Row:
        """Train a layout and compare it with one process."""
        if name == "one" and self.one is not None:
            return self.one
        began = time.monotonic()
        layout = LAYOUTS[name]
        error, difference = self.broken, None
        if not error:
            error, difference = self._judged(name, layout, gpus)
            if layout.wrong:
                found = error.startswith("off by")
                error = "" if found else f"an injected fault was not found: {error or difference}"
        refusal = self._refusal(name, error)
        return Row(
            self.version,
            self.subject,
            name,
            "refused" if refusal else "failed" if error else "passed",
            reason=refusal or without_paths(error),
            value=difference,
            seconds=round(time.monotonic() - began, 1),
        )

    def _judged(self, name: str, layout: Layout, gpus: str) -> tuple[str, float | None]:
        """Error and largest difference."""
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
                return error, None
            load, steps = ["--load", self._path(name)], range(RESUMED + 2, ALL + 1)
            layout = replace(layout, arguments=layout.then or layout.arguments)
        status, output = self._train(name, layout, load, gpus)
        losses = losses_in(output)
        error = error_in(status, output, steps, losses)
        self.losses = reference = self.losses or losses
        difference = max(
            (abs(losses[step] - reference[step]) for step in steps if step in losses), default=None
        )
        if not error and (difference is None or difference > tolerance):
            error = f"off by {difference}"
        return error, difference

    def _train(self, name: str, layout: Layout, more: Sequence[str], gpus: str) -> tuple[int, str]:
        words = [*COMMON, *MODELS[self.model], *PRECISIONS[self.precision][0].split()]
        words += ["--train-iters", str(ALL), *layout.arguments.split(), *more]
        directory = Path(self.directory.name)
        environ = {"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}
        log = f"{self.version}-{self.trainer.backend}-{self.trainer.entry}{self.trainer.release}"
        log = f"{log}-{self.model}-{self.precision}-{name}.log"
        return self.trainer.train(layout.processes, words, directory, self.logs / log, environ)

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
    return (raised or output.strip().splitlines())[-1].strip()
