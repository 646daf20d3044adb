"""A client, a command of it, and the checks of what it computed that all of them share."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
#: Dtype, shape and bytes.
Tensor = tuple[str, list[int], bytes]


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

    :param installs: words for pip, one tuple for each call, behind the variables that it needs.
    :param shown: distributions whose versions are shown.
    :param sources: repositories and the tags or commits of theirs that its commands are typed in.
    """

    name: str
    installs: tuple[tuple[str, ...], ...]
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


def losses(work: Work, output: str) -> list[float]:
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
    return values


def printed_losses(printed: str) -> dict[int, float]:
    """Iteration -> loss, as Megatron's training loop prints them."""
    found = re.findall(r"iteration +(\d+)/.*?lm loss: (\S+)", printed)
    if not found:
        raise Failed("it printed no loss")
    return {int(step): float(loss) for step, loss in found}


def distance(work: Work, output: str, reference: str, steps: int | None = None) -> float:
    """The largest between the losses of two runs, over the first ``steps`` that both logged."""
    pairs = zip(losses(work, output), losses(work, reference), strict=False)
    return max(abs(found - expected) for found, expected in list(pairs)[:steps])


def trains(output: str, reference: str = "", steps: int | None = None) -> Check:
    """The loss falls; at the first ``steps``, or at all, it is that of the run in ``reference``."""

    def check(work: Work, printed: str) -> str:
        found = losses(work, output)
        words = f"loss {found[0]:.5f} -> {found[-1]:.5f}"
        if len(found) > 1 and not found[-1] < found[0]:
            raise Failed(f"{words} does not fall")
        if not reference:
            return words
        worst = distance(work, output, reference, steps)
        return judged(f"{words}; {worst:.1e} from Hugging Face's", worst <= TOLERANCE)

    return check


def departs(output: str, reference: str, steps: int = 1) -> Check:
    """The injected fault shows: the first losses are not those of the run in ``reference``."""

    def check(work: Work, printed: str) -> str:
        apart = distance(work, output, reference, steps)
        return judged(f"{apart:.1e} from `{reference}`", apart <= TOLERANCE, injected=True)

    return check


def same_losses(output: str, other: str, last: int = 0) -> Check:
    """All losses, or the ``last`` ones, are those of the run in ``other``."""

    def check(work: Work, printed: str) -> str:
        found, expected = losses(work, output)[-last:], losses(work, other)[-last:]
        if len(found) != len(expected):
            raise Failed(f"{len(found)} steps, not {len(expected)}")
        worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
        return judged(f"loss {found[-1]:.5f}; {worst:.1e} from `{other}`", worst <= TOLERANCE)

    return check


def tuned(reference: str, tolerance: float = TOLERANCE, injected: bool = False) -> Check:
    """The printed loss falls, and the first is that of the step ``reference``; injected, not."""

    def check(work: Work, printed: str) -> str:
        found = list(printed_losses(printed).values())
        log = work.log(reference).read_text(errors="replace")
        apart = abs(found[0] - float(re.findall(r"^REFERENCE (\S+)$", log, re.MULTILINE)[-1]))
        words = f"loss {found[0]:.5f} -> {found[-1]:.5f}; {apart:.1e} from Hugging Face's"
        return judged(words, apart <= tolerance, injected, found[-1] < found[0])

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


def same_weights(model: str, back: str, rounded: bool = False) -> Check:
    """Every tensor of ``model`` is in ``back``, bit for bit.

    :param rounded: those of ``model`` are float32, and are rounded to bfloat16 first.
    """

    def check(work: Work, printed: str) -> str:
        before, after = (tensors(work.directory / directory) for directory in (model, back))
        if rounded:
            before = {name: as_bfloat16(tensor) for name, tensor in before.items()}
        changed = [name for name in before if before[name] != after.get(name)]
        if changed:
            raise Failed(f"{len(changed)} of {len(before)} tensors changed, {changed[0]} first")
        words = f"all {len(before)} tensors equal"
        return f"{words}, rounded to bfloat16" if rounded else words

    return check


def as_bfloat16(tensor: Tensor) -> Tensor:
    """Finite float32 numbers, rounded to the nearest, of two equally near ones to the even one."""
    _dtype, shape, data = tensor
    numbers = array("I", data)
    halves = array("H", (n + 0x7FFF + (n >> 16 & 1) >> 16 for n in numbers))
    return "BF16", shape, halves.tobytes()


def tensors(directory: Path) -> dict[str, Tensor]:
    """Dtype, shape and bytes of each tensor in a directory's safetensors files."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                first, last = (8 + size + place for place in entry["data_offsets"])
                found[name] = (entry["dtype"], entry["shape"], data[first:last])
    if not found:
        raise Failed(f"{directory} has no tensors")
    return found
