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
from typing import Final, NamedTuple

_LINE: Final = re.compile(r"iteration\s+(\d+)/\s*\d+ \|(.*)", re.IGNORECASE)
_VALUE: Final = re.compile(r"([\w -]*(?:loss|norm)[\w -]*): ([-+.\dEe]+|nan|inf)", re.IGNORECASE)

#: Iteration -> name -> value.
Numbers = dict[int, dict[str, float]]

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

    status: int
    output: str
    iterations: int = 0

    @property
    def losses(self) -> dict[int, float]:
        """Iteration -> the printed loss."""
        return losses_in(self.output)


class Verdict(NamedTuple):
    """What one recipe did."""

    outcome: str
    reason: str = ""


def judge(phases: Sequence[Phase], config: Mapping[str, object], *, resumes: bool) -> Verdict:
    """The verdict over all phases of a recipe."""
    last = phases[-1]
    expected = "AFTER_SCRIPT" in config and "EXIT_CODE=0" in str(config["AFTER_SCRIPT"])
    if last.status and not (expected and phases[0].losses):
        return why(last)
    if expected:  # an injected error ends it early
        phases = [dataclasses.replace(phase, iterations=0) for phase in phases]
    wrong = _wrong(phases, resumes=resumes)
    return Verdict("failed", wrong) if wrong else Verdict("passed")


def judge_text(phase: Phase, written: str) -> Verdict:
    """The verdict over a run that generates text into a file of JSON."""
    if phase.status:
        return why(phase)
    generated = "generated_tokens" in written or "generated_text" in written
    return Verdict("passed") if generated else Verdict("failed", "no text was generated")


def why(phase: Phase) -> Verdict:
    """What a start that ended with a status means."""
    for pattern, outcome, reason in REASONS:
        if found := re.search(pattern, phase.output):
            return Verdict(outcome, reason.format(*found.groups()))
    if phase.status == -1:
        return Verdict("failed", "out of time")
    told, raised = errors(phase.output)
    if told and not raised:
        first = told[0].splitlines()[0]
        # Refused means before a step; this is an exception of a step, explained.
        return Verdict("failed" if first.startswith(_STOPPED) else "refused", first)
    return Verdict("failed", raised[0] if raised else "no word")


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


def numbers_in(output: str) -> Numbers:
    """The losses and norms that Megatron prints."""
    return {
        int(number): {name.strip(): float(value) for name, value in _VALUE.findall(line)}
        for number, line in _LINE.findall(output)
    }


def losses_in(output: str) -> dict[int, float]:
    """Iteration -> loss, as Megatron prints them."""
    name = "lm loss"
    return {step: values[name] for step, values in numbers_in(output).items() if name in values}


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
