"""What the end of a recipe means.

`passed`: it trained: every iteration was printed, every loss is finite and where a model without
knowledge starts, and a resumed run repeats the losses of the run that it goes on from. `refused`:
stopped at its arguments with three parts. `unclaimed`, `harness`: a line of :data:`REASONS`, which
is short and reviewed. `failed`: anything else.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_LOSS: Final = re.compile(r"iteration\s+(\d+)/.*?lm loss: ([-+.\dEe]+|nan|inf)", re.I)

#: Largest loss of a model that knows nothing: ln(rows of the embedding) and some room.
LARGEST_FIRST_LOSS: Final = math.log(2048) + 1.5
#: A few steps must not make it worse than this.
LARGEST_RISE: Final = 0.15
#: Largest difference of a resumed loss; the first printed one may be a mean (upstream).
RESUMED: Final = 0.02

#: (in the output, outcome, reason with what was found). The first that is found counts.
REASONS: Final[Sequence[tuple[str, str, str]]] = (
    (
        r"--export-kd-teacher-load \S*/model/nemotron",
        "harness",
        "it distils a checkpoint of upstream's from its NVFP4 form, with upstream's tokenizer",
    ),
    (
        r"gpt_static_inference\.py (?s:.*)Prompt log probs cannot be calculated",
        "upstream",
        "the static engine has no log probabilities of prompts",
    ),
    (
        "unrecognized arguments: .*--export-(?:te-mcore|kd|default-te-spec|model-type)",
        "harness",
        "modelopt is not installed",
    ),
    (
        "No module named '(megatron.energon|modelopt|soundfile|scipy|simpy|flask|torchvision)",
        "harness",
        "{} is not installed",
    ),
    ("Unknown model provider: (mock)", "upstream", "the example refuses its own {} provider"),
    ("--use-torch-fsdp2 requires --untie", "upstream", "Megatron refuses its recipe's arguments"),
)

_TOLD: Final = "accel-bridge: error:"
_STOPPED: Final = "Training stopped"
#: What a rank says when another one failed.
_LOST: Final = "lost its connection"


@dataclass(frozen=True)
class Phase:
    """One start of the script."""

    key: str
    world: int
    status: int
    output: str
    iterations: int

    @property
    def losses(self) -> dict[int, float]:
        """Iteration -> the printed loss."""
        return losses_in(self.output)


@dataclass(frozen=True)
class Verdict:
    """What one recipe did."""

    outcome: str
    reason: str
    world: int
    losses: Mapping[int, float]
    seconds: float
    tail: str = ""


def judge(phases: Sequence[Phase], config: Mapping[str, object], *, resumes: bool) -> Verdict:
    """The verdict over all phases of a recipe."""
    first = phases[0].losses

    def ended(outcome: str, reason: str, tail: str = "") -> Verdict:
        return Verdict(outcome, reason, phases[0].world, first, 0.0, tail)

    last = phases[-1]
    expected = "AFTER_SCRIPT" in config and "EXIT_CODE=0" in str(config["AFTER_SCRIPT"])
    if last.status and not (expected and first):
        return ended(*why(last))
    if expected:  # an injected error ends it early
        phases = [dataclasses.replace(phase, iterations=0) for phase in phases]
    wrong = _wrong(phases, resumes=resumes)
    return ended("failed", wrong, _tail(last.output)) if wrong else ended("passed", "")


def judge_text(phase: Phase, written: str) -> Verdict:
    """The verdict over a run that generates text into a file of JSON."""
    outcome, reason, tail = ("passed", "", "")
    if phase.status:
        outcome, reason, tail = why(phase)
    elif "generated_tokens" not in written and "generated_text" not in written:
        outcome, reason, tail = "failed", "no text was generated", _tail(phase.output)
    return Verdict(outcome, reason, phase.world, {}, 0.0, tail)


def why(phase: Phase) -> tuple[str, str, str]:
    """Outcome, reason and evidence of a start that ended with a status."""
    for pattern, outcome, reason in REASONS:
        if found := re.search(pattern, phase.output):
            return outcome, reason.format(*found.groups()), _tail(phase.output)
    if phase.status == -1:
        return "failed", "out of time", _tail(phase.output)
    told, raised = errors(phase.output)
    if told and not raised:
        first = told[0].splitlines()[0]
        # Refused means before a step; this is an exception of a step, explained.
        return "failed" if first.startswith(_STOPPED) else "refused", first, told[0]
    return "failed", raised[0] if raised else "no word", _tail(phase.output)


def _wrong(phases: Sequence[Phase], *, resumes: bool) -> str:
    """What is wrong with the losses of runs that ended well."""
    for number, phase in enumerate(phases):
        losses = list(phase.losses.values())
        if not losses:
            return "no loss was printed"
        if not all(map(math.isfinite, losses)):
            return f"losses are not finite: {losses}"
        if not 0 < losses[0] < LARGEST_FIRST_LOSS * (1 + 0.5 * ("mtp" in phase.output)):
            return f"the first loss is {losses[0]}"
        if losses[-1] > losses[0] + LARGEST_RISE:
            return f"losses rise: {losses}"
        if not number and len(losses) < phase.iterations:
            return f"{len(losses)} of {phase.iterations} iterations"
    if resumes:
        first, second = phases[0].losses, phases[1].losses
        shared = sorted(first.keys() & second.keys())
        if not shared:
            return "the second run did not resume"
        worst = max(abs(first[step] - second[step]) for step in shared)
        if worst > RESUMED:
            return f"resumed losses differ by {worst:.3g}"
    return ""


def losses_in(output: str) -> dict[int, float]:
    """Iteration -> loss, as Megatron prints them."""
    return {int(number): float(loss) for number, loss in _LOSS.findall(output)}


def errors(output: str) -> tuple[list[str], list[str]]:
    """(what was told in three parts, exceptions that nobody explains), connections left out."""
    told = []
    for part in output.split(_TOLD)[1:]:
        lines = part.strip().splitlines()
        kept = [lines[0], *(line for line in lines[1:8] if re.match(r"  (evidence|next): ", line))]
        told.append(re.sub(r"^rank \d+: ", "", "\n".join(kept)))
    raised = re.findall(
        r"^(?:\[rank\d+\]:\s*)?((?:[\w]+\.)*\w*(?:Error|Exception|StopIteration)\b.*)", output, re.M
    )
    return (
        [one for one in told if _LOST not in one],
        [one[:300] for one in raised if "ChildFailedError" not in one and "gloo" not in one],
    )


def _tail(output: str, lines: int = 60) -> str:
    """The end of the output before torchrun's own summary."""
    kept = output.split("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")[0]
    return "\n".join(kept.splitlines()[-lines:])
