"""Ranks of many short runs, forked from one process that has imported torch and Megatron.

A rank spends most of a short run on imports, and a hundred at once take a minute. :class:`Nest`
starts a server of `warm_python` with the bridge active and Megatron imported; every rank is a fork
of it that runs `python -m accel_bridge.run SCRIPT ...`. Not for a backend whose device a fork
cannot use.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[2]))

import warm_python

#: What the scripts import; what a checkout lacks is passed over.
MODULES: Final = (
    *("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.tensor"),
    *("megatron.core", "megatron.training", "megatron.training.training"),
    *("megatron.training.checkpointing", "megatron.core.models.gpt.gpt_model"),
    *("megatron.core.models.hybrid.hybrid_model", "megatron.core.models.bert.bert_model"),
    *("megatron.core.models.T5", "megatron.core.models.multimodal.llava_model"),
    *("megatron.core.datasets.gpt_dataset", "megatron.core.optimizer"),
    *("megatron.core.extensions.transformer_engine", "megatron.core.distributed.fsdp"),
    *("transformers.models.auto", "torch.utils.tensorboard"),
)

#: Seconds that the other ranks get to say what happened after one has failed.
PATIENCE: Final = 8.0

Processes = list["subprocess.Popen[bytes]"]


class Nest:
    """A server of ranks, in a process of its own."""

    def __init__(self, checkout: Path, environment: Mapping[str, str]) -> None:
        self._directory, self._checkout = Path(tempfile.mkdtemp(prefix="ranks-")), checkout
        self._environment = dict(environment)
        self._number = itertools.count()
        self._lock = threading.Lock()
        here = str(Path(__file__).resolve().parent)
        code = f"import sys; sys.path.append({here!r}); import recipe_ranks; recipe_ranks.prepare()"
        self._server = warm_python.start(self._directory, os.getpid(), environment, [], code)

    def run(
        self,
        words: Sequence[str],
        world: int,
        environment: Mapping[str, str],
        log: Path,
        limit: float,
    ) -> int:
        """Status of ``world`` ranks of a script, whose output goes to ``log``; -1: out of time."""
        with self._lock:
            port = _port(next(self._number))
        command = [str(self._directory / "python"), "-m", "accel_bridge.run", *words]
        environ = {**self._environment, **environment}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        with log.open("ab") as stream:
            ranks = [
                subprocess.Popen(
                    command,
                    env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    cwd=self._checkout,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                )
                for rank in range(world)
            ]
        return _watch(ranks, limit)

    def close(self) -> None:
        """End the server; runs have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGTERM)
        self._server.wait(60)
        shutil.rmtree(self._directory, ignore_errors=True)


def prepare() -> None:
    """In the server: activate the bridge, import Megatron, share one writer of checkpoints."""
    import importlib
    from multiprocessing import forkserver, resource_tracker

    import accel_bridge.auto  # noqa: F401

    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Writers of checkpoints are forks, too, of a server that all ranks share.
    os.environ["LOCAL_WORLD_SIZE"] = "8"
    forkserver.set_forkserver_preload(["accel_bridge.auto", *MODULES])
    forkserver.ensure_running()
    # It is this process's child, so that a rank cannot ask for its status.
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server.ensure_running = resource_tracker.ensure_running


def _watch(ranks: Processes, limit: float) -> int:
    """Wait for the ranks; the first status that is not 0."""
    end, first, asked = time.monotonic() + limit, 0, False
    while living := [rank for rank in ranks if rank.poll() is None]:
        failed = next((rank.returncode for rank in ranks if rank.returncode), 0)
        if failed and not first:
            first, end = failed, min(end, time.monotonic() + PATIENCE)
        if time.monotonic() > end:
            first = first or -1
            for rank in living:
                # The server ends a fork, and all that it has started, with the one who asked.
                rank.send_signal(signal.SIGKILL if asked else signal.SIGTERM)
            asked, end = True, time.monotonic() + 5.0
        time.sleep(0.05)
    return first or next((rank.returncode for rank in ranks if rank.returncode), 0)


def _port(number: int) -> int:
    """A free port for run ``number``, below those that the kernel gives to connections."""
    for port in range(16000 + 5 * number % 8000, 32000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
