"""The eight commands of the 2023 adaptor, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from end_to_end.launcher import Run

#: The run that a command is compared with, by dtype and window (fixture ``adaptor_reference``).
Reference = Callable[[str, tuple[str, ...]], Run]

#: Initial weights so large that attention decides the loss: a band that is off by one shows.
MODEL = "--num-layers 2 --init-method-std 0.15 --lr 3e-3 --transformer-impl local".split()
DTYPES = {"fp16": ["--fp16", "--initial-loss-scale", "1024"], "bf16": ["--bf16"]}
#: Upstream's own attention, with its own masks: nothing of ours is in the reference.
#: Its fused softmax knows no window.
UPSTREAM = {
    "ACCEL_BRIDGE_PATCHES": "-core-attention",
    "ACCEL_BRIDGE_LIBRARIES": "-scaled_masked_softmax_cuda",
}
TOLERANCE = 2e-3


class Command(NamedTuple):
    """One command.

    :param pre: keys before a query that it sees, as on the command line.
    :param window: the same in Megatron's own arguments.
    """

    dtype: str
    order: str
    pre: int
    after: int
    window: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """What the launcher passes on."""
        flags = [f"--pre={self.pre}", f"--next={self.after}", f"--shape_order={self.order}"]
        return [*MODEL, *DTYPES[self.dtype], *flags, "--use-flash-attn"]


#: The second band is the adaptor's 2048/0 at the test model's scale (sequence length 64).
_BANDS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (65536, 65536, ()),
    (16, 0, ("--window-size", "16,0")),
)
COMMANDS = [
    Command(dtype, order, *band) for dtype in DTYPES for order in ("SBH", "BSH") for band in _BANDS
]


def upstream(dtype: str, window: tuple[str, ...], checkpoint: Path) -> list[str]:
    """Arguments of the run that a command is compared with, for :data:`UPSTREAM`."""
    return [*MODEL, *start_from(checkpoint), *DTYPES[dtype], *window]


def start_from(checkpoint: Path) -> list[str]:
    """The same initial weights on every device."""
    return ["--load", str(checkpoint), "--finetune"]
