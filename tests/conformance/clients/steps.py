"""A client, a command of it, and the checks of what it computed that all of them share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

#: How far the first loss, and logits, may be from Hugging Face's own, in float32.
TOLERANCE: Final = 1e-4


class Failed(Exception):
    """A step did not do what it should; the message says what."""


@dataclass(frozen=True)
class Work:
    """Where the commands run, and the environment that their programs come from."""

    directory: Path
    environment: Path

    def log(self, step: str) -> Path:
        """What a step printed."""
        return self.directory / f"{step.replace(' ', '-')}.log"


Check = Callable[[Work, str], str]
#: Iteration -> loss.
Losses = dict[int, float]
#: Before a command: it runs on an EMULATED NPU.
NPU: Final = "accel-bridge emulate-ascend --install -- "
#: How Megatron, verl and torchtitan print them.
FORMS: Final = (
    r"iteration +(\d+)/.*?lm loss: (\S+)",
    r"step:(\d+) .*?train/loss:(?:np\.float\d+\()?([-+.e\d]+|nan)",
    r"step: +(\d+) +loss: +(\S+)",
)


@dataclass(frozen=True)
class Step:
    """One command as a user types it.

    :param check: takes the work and what was printed; gives the result in words, or raises.
    :param emulated: it runs on EMULATED NPUs.
    """

    name: str
    command: str
    check: Check
    emulated: bool = False


@dataclass(frozen=True)
class Client:
    """A framework.

    :param installs: words for pip, one text for each call, behind the variables that it needs.
    :param shown: distributions whose versions are shown.
    :param sources: repositories and the tags or commits of theirs that its commands are typed in.
    """

    name: str
    installs: tuple[str, ...]
    shown: tuple[str, ...]
    steps: tuple[Step, ...]
    sources: tuple[tuple[str, str], ...] = ()


def judged(words: str, near: bool, injected: bool = False, always: bool = True) -> str:
    """The words about two that are near one another, or far and a fault is injected.

    :param always: what must hold in both cases.
    """
    if near is injected or not always:
        raise Failed(f"{words}: not found" if near and injected else words)
    return f"{words}: found" if injected else words


def logged_losses(work: Work, output: str) -> Losses:
    """What the newest run below ``output`` logged."""
    logs = sorted(
        (work.directory / output).glob("**/logging.jsonl"), key=lambda one: one.stat().st_mtime
    )
    if not logs:
        raise Failed(f"{output} has no logging.jsonl")
    rows = [json.loads(line) for line in logs[-1].read_text().splitlines()]
    values = [float(row["loss"]) for row in rows if "loss" in row]
    if not values:
        raise Failed(f"{logs[-1]} has no loss")
    return dict(enumerate(values, 1))


def printed_losses(printed: str) -> Losses:
    """What was printed in one of :data:`FORMS`."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    for form in FORMS:
        if found := re.findall(form, plain):
            return {int(step): float(loss) for step, loss in found}
    raise Failed("it printed no loss")


def expected_losses(work: Work, like: str, printed: str, first: int) -> tuple[Losses, str]:
    """Those of a run that logged or of a step that printed, and whose they are."""
    if like.startswith("out/"):
        return logged_losses(work, like), f"`{like}`"
    text = work.log(like).read_text(errors="replace") if like else printed
    word = "REFERENCE" if like else "TRANSFORMERS"
    if theirs := re.search(rf"^{word} (\S+)$", text, re.MULTILINE):
        return {first: float(theirs[1])}, "Hugging Face's"
    return (printed_losses(text), f"`{like}`") if like else ({}, "")


def learns(
    like: str = "",
    out: str = "",
    *,
    start: int | None = 1,
    steps: int | None = None,
    last: int = 0,
    whole: bool = False,
    falls: bool = True,
    injected: bool = False,
    near: float = TOLERANCE,
) -> Check:
    """The loss falls, and is at each step that both have that of ``like``; injected, it is not.

    :param like: a step, of which the losses or the one loss of Transformers' count that it printed,
        or where a run logged them; without it, what the command itself printed of Transformers'.
    :param out: where the command logged its losses; without it, it printed them.
    :param start: the first iteration; None: any.
    :param steps: so many of the first are compared.
    :param last: so many of the last are compared, by their order.
    :param whole: both must have the same steps.
    """

    def check(work: Work, printed: str) -> str:
        found = logged_losses(work, out) if out else printed_losses(printed)
        first, end = min(found), max(found)
        words = f"loss {found[first]:.5f} at step {first}, {found[end]:.5f} at {end}"
        if start is not None and first != start:
            raise Failed(f"{words}: it did not begin at {start}")
        if falls and not found[end] < found[first]:
            raise Failed(f"{words} does not fall")
        expected, whose = expected_losses(work, like, printed, first)
        if not whose:
            return words
        if last:
            found, expected = (
                dict(enumerate([*one.values()][-last:])) for one in (found, expected)
            )
        shared = sorted(found.keys() & expected.keys())[:steps]
        if not shared or (whole and found.keys() != expected.keys()):
            raise Failed(f"{words}: steps {[*found]}, those of {whose} {[*expected]}")
        apart = max(abs(found[step] - expected[step]) for step in shared)
        return judged(f"{words}; {apart:.1e} from {whose}", apart <= near, injected)

    return check


def log_probabilities(limit: float = TOLERANCE, found: bool = False) -> Check:
    """Before each step they are those of Transformers, within ``limit``, and steps move them.

    :param found: an injected fault makes them differ.
    """

    def check(work: Work, printed: str) -> str:
        rows = re.findall(r"STEP \d (\S+) from Transformers', moved (\S+)$", printed, re.MULTILINE)
        if len(rows) < 3:
            raise Failed(f"{len(rows)} steps, not 3")
        away, moved = ([float(row[place]) for row in rows] for place in (0, 1))
        words = (
            f"log probabilities {max(away):.1e} from Transformers' at most, before each step and "
            f"after those that moved them by {moved[-1]:.2f}"
        )
        return judged(words, max(away) <= limit, found, moved[-1] > 10 * limit)

    return check


def looped(found: bool = False) -> Check:
    """At each step the generator, the policy and the loss are as Transformers', and they move.

    :param found: an injected fault makes them differ.
    """

    def check(work: Work, printed: str) -> str:
        form = r"^LOOP \d generator (\S+), policy (\S+), loss (\S+)$"
        rows = [[*map(float, row)] for row in re.findall(form, printed, re.MULTILINE)]
        logged = [float(loss) for loss in re.findall(r" Loss: (\S+)$", printed, re.MULTILINE)]
        if not len(rows) == len(logged) == 3:
            raise Failed(f"{len(rows)} and {len(logged)} steps, not 3")
        generator, policy, losses = zip(*rows, strict=True)
        loss = max(abs(one - other) for one, other in zip(losses, logged, strict=True))
        words = (
            f"from Transformers' at most, at each step: the generator's log probabilities "
            f"{max(generator):.1e}, the policy's {max(policy):.1e}, the loss {loss:.1e}"
        )
        near = max(*generator, *policy, loss) <= TOLERANCE
        return judged(words, near, found, len({*losses}) == 3)

    return check


def says(words: str) -> Check:
    """It printed ``words``."""

    def check(work: Work, printed: str) -> str:
        if words not in printed:
            raise Failed(f"it did not print {words!r}")
        return words

    return check


def compared(other: str, found: str = "") -> Step:
    """The recordings ``cpu.rec`` and ``other`` agree.

    :param found: what is said of an injected fault, with which they must not.
    """
    words = f"accel-bridge parity compare cpu.rec {other}"
    if found:
        return Step("injected fault compared", f"! {words}", says(found))
    return Step("recordings compared", words, says("PASS: the runs agree"), emulated=True)


def same_weights(model: str, back: str, rounded: bool = False, injected: bool = False) -> Check:
    """Every tensor of ``model`` is in ``back``, with the same type and numbers.

    :param rounded: those of ``model`` are float32, and are rounded to bfloat16 first.
    :param injected: one came back changed, and all others as they were.
    """

    def check(work: Work, printed: str) -> str:
        before, after = (tensors(work.directory / directory) for directory in (model, back))
        if rounded:
            before = {name: tensor.bfloat16() for name, tensor in before.items()}
        kept = [
            name
            for name, one in before.items()
            if name in after and one.dtype == after[name].dtype and one.equal(after[name])
        ]
        changed = sorted(before.keys() - kept)
        words = f"{len(changed)} of {len(before)} tensors changed{', rounded' * rounded}"
        if injected:
            return judged(words, len(changed) != 1 or changed[0] not in after, injected=True)
        return judged(words, not changed)

    return check


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Those of a directory's safetensors files."""
    from safetensors.torch import load_file

    files = sorted(directory.glob("*.safetensors"))
    found = {name: tensor for path in files for name, tensor in load_file(path).items()}
    if not found:
        raise Failed(f"{directory} has no tensors")
    return found
