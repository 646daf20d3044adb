"""Ranks of many short runs, forked from one process that has imported torch and Megatron.

A rank spends most of a short run on imports, and a hundred at once take a minute. :class:`Nest`
starts one parent with the bridge active; every rank is a fork of it that runs a script as
`python -m accel_bridge.run SCRIPT ...` would. Not for a backend whose device a fork cannot use.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

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


class Nest:
    """The parent of ranks, in a process of its own."""

    def __init__(self, checkout: Path, environment: Mapping[str, str]) -> None:
        self._waiting: dict[int, Future[int]] = {}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(checkout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
            cwd=checkout,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is ready
        threading.Thread(target=self._listen, daemon=True).start()

    def run(
        self,
        words: Sequence[str],
        world: int,
        environment: Mapping[str, str],
        log: Path,
        limit: float,
    ) -> int:
        """Status of ``world`` ranks of a script, whose output goes to ``log``; -1: out of time."""
        future: Future[int] = Future()
        with self._lock:
            number = len(self._waiting)
            self._waiting[number] = future
            request = [number, list(words), world, dict(environment), str(log), limit]
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return future.result()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                number, status = json.loads(line)
                self._waiting[number].set_result(status)
        for future in self._waiting.values():
            if not future.done():
                future.set_result(-2)

    def close(self) -> None:
        """End the parent; runs have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)


def _serve(checkout: str) -> None:
    """Import everything, then fork one supervisor for each request."""
    import gc
    import importlib
    from multiprocessing import forkserver

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, checkout)
    import accel_bridge.auto  # noqa: F401

    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Writers of checkpoints are forks, too, of a server that ranks share.
    os.environ["LOCAL_WORLD_SIZE"] = "8"
    forkserver.set_forkserver_preload(["accel_bridge.auto", *MODULES])
    forkserver.ensure_running()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(answers.fileno(), b"ready\n")
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            number, words, world, environment, log, limit = json.loads(line)
            os.setsid()
            os.environ.update(environment)
            status = _supervise(number, words, world, log, limit)
            # One short write: lines of several supervisors do not mix.
            os.write(answers.fileno(), f"[{number}, {status}]\n".encode())
            os._exit(0)


def _supervise(number: int, words: list[str], world: int, log: str, limit: float) -> int:
    """Fork the ranks and wait for them; the first status that is not 0."""
    port = _port(number)
    ranks: set[int] = set()
    for rank in range(world):
        process = os.fork()
        if process == 0:
            _become(words, rank, world, port, log)
        ranks.add(process)
    end, first = time.monotonic() + limit, 0
    asked = False
    while ranks:
        process, raw = os.waitpid(-1, os.WNOHANG)
        if process in ranks:
            ranks.discard(process)
            status = os.waitstatus_to_exitcode(raw)
            if status and not first:
                first = status
                end = min(end, time.monotonic() + PATIENCE)
        elif not process:
            if time.monotonic() > end:
                first = first or -1
                for one in ranks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL if asked else signal.SIGTERM)
                asked, end = True, time.monotonic() + 5.0
            time.sleep(0.05)
    # What the ranks started (workers of data loaders, writers) goes with them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(0, signal.SIGTERM)
    return first


def _port(number: int) -> int:
    """A free port for run ``number``, below those that the kernel gives to connections."""
    for port in range(16000 + 5 * number % 8000, 32000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def _become(words: list[str], rank: int, world: int, port: int, log: str) -> None:
    """Be one rank; never returns."""
    import atexit
    from multiprocessing import forkserver, resource_tracker

    import numpy

    # The server is the nest's child, so that a rank cannot ask for its status.
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server.ensure_running = resource_tracker.ensure_running

    stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for place in (1, 2):
        os.dup2(stream, place)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    numpy.random.seed()
    status: Any = 1
    try:
        from accel_bridge.run import main

        status = main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int | None) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            output.flush()
    os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    _serve(sys.argv[1])
