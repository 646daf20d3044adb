"""The machine of a first run: its backend, how many devices, and what is trained on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from accel_bridge.bridge.selection import select
from accel_bridge.device.backend import environment_of
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process.environment import Settings

#: What the recording that is shipped was made with: `tools/first_run_recording.py`.
PARITY_STEPS: Final = 20
PARITY_MODEL: Final = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 4 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 255 --make-vocab-size-divisible-by 128 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    f"--untie-embeddings-and-output-weights --lr 1e-3 --seed 1234 --train-iters {PARITY_STEPS} "
    "--eval-iters 0 --eval-interval 1000 --log-interval 1 "
    # No two devices draw the same masks.
    "--hidden-dropout 0 --attention-dropout 0"
)


@dataclass(frozen=True, slots=True)
class Size:
    """A model whose speed is measured.

    :param layers: of the feed-forward size of Llama, 8/3 of ``hidden`` up to a multiple of 64.
    :param micro_batch: sequences of each device and step.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    micro_batch: int
    steps: int

    @property
    def feed_forward(self) -> int:
        """Size of the feed-forward layer."""
        return -(-8 * self.hidden // 3 // 64) * 64

    def words(self, ranks: int, tensor: int) -> str:
        """Its arguments of Megatron, on ``ranks`` processes of which ``tensor`` share a layer."""
        parallel = f"--tensor-model-parallel-size {tensor}"
        if tensor > 1:
            parallel += " --sequence-parallel"
        return (
            f"--num-layers {self.layers} --hidden-size {self.hidden} --num-attention-heads "
            f"{self.heads} --ffn-hidden-size {self.feed_forward} --seq-length {self.sequence} "
            f"--max-position-embeddings {self.sequence} --micro-batch-size {self.micro_batch} "
            f"--global-batch-size {self.micro_batch * ranks // tensor} --mock-data "
            "--tokenizer-type NullTokenizer --vocab-size 32000 --position-embedding-type rope "
            "--normalization RMSNorm --swiglu --disable-bias-linear --bf16 --lr 1e-4 "
            "--untie-embeddings-and-output-weights --eval-iters 0 --eval-interval 1000 "
            f"--train-iters {self.steps} {parallel}"
        )

    def operations(self) -> float:
        """Floating-point operations of a token's forward and backward pass."""
        attention = 4 * self.hidden**2 + 2 * self.sequence * self.hidden / 2
        layer = attention + 3 * self.hidden * self.feed_forward
        return 6 * (self.layers * layer + 32000 * self.hidden)


#: Fits into 16 GB with Adam's states; and what an emulated device or a CPU manages in seconds.
REAL: Final = Size(8, 2048, 16, 2048, 2, 12)
SMALL: Final = Size(2, 64, 4, 64, 2, 6)


@dataclass(frozen=True, slots=True)
class FirstMachine:
    """What the run is made on.

    :param title: the backend's name for people; says EMULATED where it is.
    :param devices: how many there are; 1 for a CPU.
    :param environ: variables that the backend needs before torch.
    """

    backend: str
    title: str
    why: str
    devices: int
    environ: Mapping[str, str]

    @property
    def real(self) -> bool:
        """Whether speed on it means anything."""
        return self.backend != "cpu" and "EMULATED" not in self.title

    @property
    def size(self) -> Size:
        """The model whose speed is measured."""
        return REAL if self.real else SMALL

    def layouts(self) -> list[tuple[str, int, int]]:
        """(name, processes, tensor parallel size) of the rows of the throughput table."""
        found = [("one device", 1, 1)]
        if self.devices > 1:
            found.append((f"{self.devices} devices, data parallel", self.devices, 1))
            found.append(("2 devices, tensor and sequence parallel", 2, 2))
        return found


def look(requested: str | None, environ: Mapping[str, str] = os.environ) -> FirstMachine:
    """The machine that a program would run on.

    :param requested: name of a backend; None: the one a program would get.
    :raises BridgeError: there is none.
    """
    settings = Settings.from_environ(environ)
    selection = select(load_plugins(settings.plugins), settings, requested)
    chosen = selection.chosen
    probes = [one.probe for one in selection.probes if one.backend.name == chosen.name]
    devices = probes[0].devices if probes else None
    return FirstMachine(
        chosen.name, chosen.title, selection.why, devices or 1, dict(environment_of(chosen))
    )
