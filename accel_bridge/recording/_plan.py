"""What to record: set by the worker before the bridge is active, asked for by the patches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

#: What stands in a recording about the machine: a JSON object.
Describe = Callable[[], dict[str, object]]

#: Steps from one measurement of modules to the next, where the user does not say.
EVERY: Final = 25
#: Holds a plan for the child processes of a command.
PLAN: Final = "_ACCEL_BRIDGE_PLAN"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record, and where.

    :param out: the file to write; empty for a capsule alone.
    :param every: modules are measured at the first two steps and at every multiple of this.
    :param values: values kept of each tensor that is sampled.
    :param capsule: the module whose operators are kept; empty for none.
    :param capsule_step: at this step.
    :param capsule_out: in this file.
    :param last: end the run after this step; 0: when it ends by itself.
    :param perturbs: move every output and gradient by its format's rounding, drawn with this seed;
        0: do not.
    :param tokens: a JSON file with lists of token ids; the model that is trained scores them, into
        ``out``, in place of its first step.
    """

    out: str
    every: int = EVERY
    values: int = 256
    capsule: str = ""
    capsule_step: int = 1
    capsule_out: str = ""
    last: int = 0
    perturbs: int = 0
    tokens: str = ""

    def measures_modules(self, step: int) -> bool:
        """Whether modules, gradients and weights are measured at ``step`` (counted from 1)."""
        return bool(self.out) and (step <= 2 or step % self.every == 0)

    def keeps_samples(self, step: int) -> bool:
        """Whether values of the tensors themselves are kept: before and after one update."""
        return step <= 2

    def as_word(self) -> str:
        """The plan as one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_word(cls, word: str) -> Plan:
        """Inverse of :meth:`as_word`."""
        return cls(**json.loads(word))


_plan: Plan | None = None
_describe: Describe = dict


def set_plan(plan: Plan | None, describe: Describe = dict) -> None:
    """Make ``plan`` this process's; it must be set before the bridge is activated.

    :param describe: what to write about the machine, asked for when the file is written.
    """
    global _plan, _describe
    _plan, _describe = plan, describe


def current_plan() -> Plan | None:
    """This process's plan; None when nothing is recorded."""
    return _plan


def machine() -> dict[str, object]:
    """What the recording says about this machine."""
    return _describe()
