"""Trains tiny models with other Megatrons, unedited, and compares every layout with one process.

    python tests/conformance/megatron/matrix.py [NAME=]CHECKOUT... [--layouts one,tp2-sp,...]
        [--models dense,moe,mla-8,...] [--precisions fp32,bf16] [--backend cpu] [--entry module]
        [--four] [--wheel DIRECTORY] [--jobs 1] [--warm] [--json FILE] [--logs DIRECTORY]

CHECKOUT is a directory with a Megatron's package and its pretrain_gpt.py (or, for `--entry
pretrain`, where a wheel was unpacked), or NAME=DIRECTORY, since a branch spells the number of its
next release. One process trains two iterations and saves; every layout then loads that checkpoint
and trains on, and its losses must be those of one process. ``--wheel`` is another
Transformer Engine's unpacked wheel. Not part of the test suite: a cell takes half a minute. The
committed results are in tools/compatibility.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import megatron_programs
from cells import Chain
from layouts import FOUR_LAYOUTS, FOUR_MODELS, LAYOUTS, MODELS, USUAL, USUAL_LAYOUTS
from megatron_programs import ENTRIES, Row, Trainer, named


def main() -> int:
    """Print one line per cell; status 1 when one failed."""
    parser = _parser()
    if parser.parse_args().four:
        models, layouts = ",".join(FOUR_MODELS), ",".join(FOUR_LAYOUTS)
        parser.set_defaults(models=models, layouts=layouts, precisions="fp32,bf16")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        logs = megatron_programs.logs_of(asked, Path(name))
        python = megatron_programs.python_of(asked)
        own = (asked.backend, asked.entry, python, asked.limit, asked.wheel)
        chains = [
            Chain(Trainer(checkout, *own), version, model, precision, logs)
            for version, checkout in map(named, asked.checkouts)
            for model in asked.models.split(",")
            for precision in asked.precisions.split(",")
        ]
        status = megatron_programs.finish(asked, (("matrix", row) for row in _rows(chains, asked)))
        for chain in chains:
            chain.directory.cleanup()
    return status


def _parser() -> argparse.ArgumentParser:
    parser = megatron_programs.options(__doc__)
    parser.add_argument("checkouts", nargs="+", metavar="[NAME=]CHECKOUT")
    parser.add_argument(
        "--layouts", default=",".join(USUAL_LAYOUTS), help=f"of {', '.join(LAYOUTS)}"
    )
    parser.add_argument("--models", default=",".join(USUAL), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--precisions", default="fp32")
    four = "every model, precision and layout that wants four processes (or --backend cuda, GPUs)"
    parser.add_argument("--four", action="store_true", help=four)
    parser.add_argument("--entry", default="module", choices=ENTRIES, help="how it is started")
    parser.add_argument(
        "--wheel", type=Path, metavar="DIRECTORY", help="another Transformer Engine"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine, for cuda")
    parser.add_argument(
        "--within", type=float, default=float("inf"), help="start nothing after this many seconds"
    )
    return parser


def _rows(chains: Sequence[Chain], arguments: argparse.Namespace) -> Iterator[Row]:
    """Every layout of every chain as it ends; the starts come first, since all others need them."""
    began = time.monotonic()
    devices = _Devices(arguments.gpus if arguments.backend == "cuda" else 0)

    def job(work: Callable[[str], Row], processes: int) -> Row | None:
        if time.monotonic() - began > arguments.within:
            return None
        with devices.lend(processes) as gpus:
            return work(gpus)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for one in [pool.submit(job, chain.start, 1) for chain in chains]:
            one.result()
        rest = [
            pool.submit(job, partial(chain.run, name), LAYOUTS[name].processes)
            for name, chain in itertools.product(arguments.layouts.split(","), chains)
            if "--num-experts" in MODELS[chain.model] or not LAYOUTS[name].experts
        ]
        for future in as_completed(rest):
            row = future.result()
            if row is not None:
                yield row


class _Devices:
    """Lends out the GPUs that the fewest trainings use; they share them."""

    def __init__(self, number: int) -> None:
        self._users = [0] * number
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self, number: int) -> Iterator[str]:
        """CUDA_VISIBLE_DEVICES for ``number`` processes; empty where there are no GPUs."""
        with self._lock:
            order = sorted(range(len(self._users)), key=self._users.__getitem__)
            lent = sorted(order[:number])
            for one in lent:
                self._users[one] += 1
        try:
            yield ",".join(map(str, lent))
        finally:
            with self._lock:
                for one in lent:
                    self._users[one] -= 1


if __name__ == "__main__":
    raise SystemExit(main())
