"""Megatron's training log: the losses in it, and their curve."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ITERATION = re.compile(r"iteration\s+(\d+)/\s*(\d+) \|")
_LOSS = re.compile(r"lm loss: ([-+.\dEe]+|nan|inf)")
_MILLISECONDS = re.compile(r"elapsed time per iteration \(ms\): ([\d.]+)")


@dataclass(frozen=True, slots=True)
class Step:
    """One logged iteration: its number, its loss (nats per token) and its time (ms)."""

    iteration: int
    of: int
    loss: float
    milliseconds: float


def parse_step(line: str) -> Step | None:
    """The iteration that a line of Megatron's log reports, or None."""
    iteration, loss, time = (pattern.search(line) for pattern in (_ITERATION, _LOSS, _MILLISECONDS))
    if iteration is None or loss is None or time is None:
        return None
    return Step(int(iteration[1]), int(iteration[2]), float(loss[1]), float(time[1]))


def draw_curve(steps: Sequence[Step], resumed_after: int, title: str, path: Path) -> None:
    """Draw loss over iterations as a PNG, with a mark where training was resumed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for label, part, color in (
        ("first run", [step for step in steps if step.iteration <= resumed_after], "tab:blue"),
        ("resumed", [step for step in steps if step.iteration > resumed_after], "tab:orange"),
    ):
        numbers = [step.iteration for step in part]
        axes.plot(numbers, [step.loss for step in part], color=color, label=label)
    axes.axvline(resumed_after, color="grey", linestyle=":", label="checkpoint")
    axes.set(xlabel="iteration", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
