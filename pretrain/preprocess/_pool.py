"""Worker processes: blocks out, encoded blocks back in order, and an error if one dies."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple, Protocol

from accel_bridge.errors import BridgeError
from accel_bridge.process.endings import ASKED

from .blocks import Block, Task
from .encoder import EncodedBlock, Encoder
from .errors import AGAIN, WorkerError

#: Shared memory of each worker for the tokens of one block. Through the pipe they would be
#: copied five times; what does not fit here still goes that way.
_WINDOW_BYTES = 16 << 20
#: Tasks started before the oldest unfinished one is done, per worker. Bounds memory when one
#: block takes much longer than others.
_LOOKAHEAD = 3


class Failure(NamedTuple):
    """What a worker sends instead of a result: the three parts of an error."""

    what: str
    evidence: tuple[str, ...]
    next: str


class Finished(NamedTuple):
    """A result; ``source`` is the index of its input file."""

    number: int
    source: int
    result: EncodedBlock


class Pool(Protocol):
    """What encodes blocks: local processes, or a cluster."""

    def run(self, tasks: Iterator[Task]) -> Iterator[Finished]:
        """Encode ``tasks``; results come in their order."""

    def close(self) -> None:
        """End all workers at once."""


class WorkerPool:
    """Up to ``workers`` forked processes, each with the parent's encoder, started when needed.

    Forking costs nothing and copies nothing, where a new interpreter would import and build
    the tokenizer again. Every worker has its own pipe and at most one task, so that neither
    side ever waits for the other to read.
    """

    def __init__(self, encoder: Encoder, workers: int) -> None:
        self._encoder = encoder
        self._workers = workers
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        self._windows: list[mmap.mmap] = []

    def run(self, tasks: Iterator[Task]) -> Iterator[Finished]:
        """Encode ``tasks``; results come in their order.

        :raises WorkerError: a worker died, or its code raised.
        """
        idle: list[int] = []
        running: dict[int, Task] = {}
        done: dict[int, Finished] = {}
        upcoming = next(tasks, None)
        oldest = upcoming.number if upcoming else 0
        while upcoming or running or done:
            while upcoming and upcoming.number < oldest + _LOOKAHEAD * self._workers:
                if idle:
                    worker = idle.pop()
                elif len(self._processes) < self._workers:
                    worker = self._start()
                else:
                    break
                self._send(worker, upcoming)
                running[worker] = upcoming
                upcoming = next(tasks, None)
            if oldest not in done:
                for worker in self._ready(running):
                    task = running.pop(worker)
                    done[task.number] = Finished(task.number, task.source, self._receive(worker))
                    idle.append(worker)
            while oldest in done:
                yield done.pop(oldest)
                oldest += 1

    def close(self) -> None:
        """End all workers at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()
        for window in self._windows:
            window.close()

    def _start(self) -> int:
        """Fork one more worker; its number."""
        context = multiprocessing.get_context("fork")
        # Until a worker has said what signals do to it, none may reach it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED)
        try:
            ours, theirs = context.Pipe()
            self._connections.append(ours)
            window = mmap.mmap(-1, _WINDOW_BYTES)
            self._windows.append(window)
            process = context.Process(
                target=_serve,
                args=(self._encoder, theirs, window, tuple(self._connections)),
                daemon=True,
            )
            with warnings.catch_warnings():
                # A library that was imported before may have threads. Workers use none of
                # them: they tokenize with single-threaded calls only.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._processes.append(process)
        except OSError as error:
            raise WorkerError(
                "a worker process cannot be started",
                evidence=f"{len(self._processes)} are running: {error}",
                next=f"{AGAIN} with fewer --workers",
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return len(self._processes) - 1

    def _ready(self, running: dict[int, Task]) -> list[int]:
        waiting = {id(self._connections[worker]): worker for worker in running}
        ready = wait([self._connections[worker] for worker in running])
        return [waiting[id(connection)] for connection in ready]

    def _send(self, worker: int, task: Task) -> None:
        try:
            self._connections[worker].send(task.block)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._death(worker) from error

    def _receive(self, worker: int) -> EncodedBlock:
        try:
            message = self._connections[worker].recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._death(worker) from error
        if isinstance(message, Failure):
            raise WorkerError(message.what, evidence=message.evidence, next=message.next)
        assert isinstance(message, EncodedBlock)
        return _from_window(message, self._windows[worker])

    def _death(self, worker: int) -> WorkerError:
        process = self._processes[worker]
        process.join(timeout=5)
        code = process.exitcode
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exit status {code}"
        hint = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
        return WorkerError(
            "a worker process died",
            evidence=f"process {process.pid}: {how}{hint}",
            next=f"{AGAIN}, with fewer --workers if memory is short",
        )


def _serve(
    encoder: Encoder,
    connection: Connection,
    window: mmap.mmap,
    inherited: tuple[Connection, ...],
) -> None:
    """A worker's whole life: until the parent closes the pipe, or dies."""
    # The parent decides when to end; a terminal's Ctrl-C reaches the whole process group.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED)
    # Copies of the parent's ends would keep pipes open after the parent's death.
    for other in inherited:
        other.close()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        while True:
            answer = encode_or_fail(encoder, connection.recv())
            if isinstance(answer, EncodedBlock):
                answer = _to_window(answer, window)
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _to_window(result: EncodedBlock, window: mmap.mmap) -> EncodedBlock:
    """``result`` with its tokens in ``window``, if they fit, and empty in the message."""
    if sum(len(key.tokens) for key in result.keys.values()) > len(window):
        return result
    keys = {}
    result.in_window = []
    window.seek(0)
    for name, key in result.keys.items():
        result.in_window.append(len(key.tokens))
        window.write(key.tokens)
        keys[name] = key._replace(tokens=b"")
    return replace(result, keys=keys)


def _from_window(result: EncodedBlock, window: mmap.mmap) -> EncodedBlock:
    """The reverse of :func:`_to_window`."""
    if result.in_window is None:
        return result
    window.seek(0)
    keys = {
        name: key._replace(tokens=window.read(size))
        for (name, key), size in zip(result.keys.items(), result.in_window, strict=True)
    }
    return replace(result, keys=keys, in_window=None)


def encode_or_fail(encoder: Encoder, block: Block) -> EncodedBlock | Failure:
    """What a worker answers for ``block``, whatever happens."""
    try:
        return encoder.encode(block)
    except BridgeError as error:
        return Failure(error.what, error.evidence, error.next)
    # Whatever it is, the parent must hear of it: a worker that just ended would say less.
    except Exception as error:
        trace = traceback.format_exc().splitlines()[-4:]
        return Failure(
            "a worker failed",
            (f"{type(error).__name__}: {error}", *trace),
            "report this; --tokenizer-engine exact may get around it",
        )
