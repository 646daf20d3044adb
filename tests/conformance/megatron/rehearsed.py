"""A random training, rehearsed and really run: both must do and say the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import megatron_programs
from megatron_programs import Trainer
from mixtures import Mixture
from recipe_verdicts import errors

from accel_bridge.bridge.activation import BEFORE

COUNTING: Final = str(megatron_programs.ROOT / "tests" / "rehearse")
sys.path.append(COUNTING)

import counting  # noqa: E402

#: Steps that are compared; the second has no first time in it.
STEPS: Final = ["--train-iters", "2"]


@dataclass(frozen=True)
class Rehearsed:
    """One mixture's variants."""

    trainer: Trainer
    mixture: Mixture
    directory: Path
    logs: Path

    def lines(self) -> list[str]:
        """A line for each variant."""
        mixture = self.mixture
        lines = [f"{mixture.seed} plain: {' '.join((*mixture.what, mixture.precision))}"]
        for index, variant in enumerate(mixture.variants):
            words = [*mixture.words(), *variant.words(), *STEPS]
            verdict, why = self._judge(index, variant.layout.processes, words)
            lines.append(f"{mixture.seed} {verdict} {variant}" + (f"\n    {why}" if why else ""))
        return lines

    def _judge(self, index: int, processes: int, words: Sequence[str]) -> tuple[str, str]:
        directory = self.directory / f"{index}"
        directory.mkdir()
        command = self.trainer.command(processes, words)
        paths = megatron_programs.environment(self.trainer.checkout, "cpu", COUNTING)["PYTHONPATH"]
        count = {BEFORE: "counting:attach", "COUNT_DIRECTORY": str(directory), "PYTHONPATH": paths}
        limit = self.trainer.limit
        status, output = self._run(f"{index}-real", command, count, limit)
        rehearse = [sys.executable, "-m", "accel_bridge", "rehearse", "--ranks", "all"]
        rehearse += ["--device", "host", "--keep", str(directory / "kept"), "--", *command]
        rehearsed, told = self._run(f"{index}-rehearsed", rehearse, {}, limit * processes)
        if bool(status) != bool(rehearsed) or (status and said(output) != said(told)):
            return (
                "WRONG",
                f"real {status}: {said(output)!r}; rehearsed {rehearsed}: {said(told)!r}",
            )
        if status:
            return ("refused" if said(output) else "ENDED"), said(output) or f"status {status}"
        for rank in range(processes):
            real, found = (
                json.loads((directory / f"{name}.{rank}.json").read_text())
                for name in ("real", "kept/rank")
            )
            # How many tokens an expert gets is its router's choice.
            if why := difference(real, found, sizes="--num-experts" not in words):
                return "WRONG", f"rank {rank}: {why}"
        return "ok", ""

    def _run(
        self, name: str, command: Sequence[str], environ: dict[str, str], limit: float
    ) -> tuple[int, str]:
        # Megatron asks for it with Transformer Engine's Python.
        environ = {**environ, "NVTE_CPU_OFFLOAD_V1": "1"}
        log = self.logs / f"{self.trainer.checkout.name}-{self.mixture.seed}-{name}.log"
        return self.trainer.run(command, self.directory, log, environ, limit)


def said(output: str) -> str:
    """The program's own error; what tells of it comes behind."""
    told, _ = errors(output)
    return told[0].splitlines()[0] if told else ""


def difference(real: dict[str, Any], rehearsed: dict[str, Any], sizes: bool = True) -> str:
    """What a rank's training has and its rehearsal has not, or the reverse.

    :param sizes: whether bytes of collectives are compared.
    """
    if real["parameters"] != rehearsed["parameters"]:
        return f"parameters {real['parameters']}, rehearsed {rehearsed['parameters']}"
    made, found = (counting.count(one, sizes) for one in (real, rehearsed))
    return (
        "" if made == found else f"only real {dict(made - found)}, rehearsed {dict(found - made)}"
    )
