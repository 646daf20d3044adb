"""Worker processes: blocks out, encoded blocks back in order, and an error if one dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing.process import BaseProcess
from typing import NamedTuple, Protocol

from accel_bridge.errors import BridgeError
from accel_bridge.process.endings import ASKED
from accel_bridge.process.ranks import be_killed_with_parent

from .blocks import Block, Task
from .encoder import EncodedBlock, Encoder
from .errors import AGAIN, WorkerError

#: Tasks started before the oldest unfinished one is done, per worker. Bounds memory when one
#: block takes much longer than others.
_LOOKAHEAD = 3


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


def in_order(
    tasks: Iterator[Task],
    start: Callable[[Task], Callable[[], EncodedBlock | BridgeError]],
    ahead: int,
) -> Iterator[Finished]:
    """Results in the order of their tasks.

    :param start: starts a task; gives what waits for its result.
    :param ahead: tasks that are started before the oldest result is taken.
    :raises BridgeError: a worker's code raised.
    """
    started: deque[tuple[Task, Callable[[], EncodedBlock | BridgeError]]] = deque()
    for task in chain(tasks, [None]):
        if task is not None:
            started.append((task, start(task)))
        while started and (task is None or len(started) >= ahead):
            oldest, wait = started.popleft()
            result = wait()
            if isinstance(result, BridgeError):
                raise result
            yield Finished(oldest.number, oldest.source, result)


class WorkerPool:
    """Up to ``workers`` forked processes with the parent's encoder: as many as there are tasks.

    Forking costs nothing and copies nothing, where a new interpreter would import and build
    the tokenizer again.
    """

    def __init__(self, encoder: Encoder, workers: int) -> None:
        self._encoder = encoder
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None
        self._processes: set[BaseProcess] = set()

    def run(self, tasks: Iterator[Task]) -> Iterator[Finished]:
        """Encode ``tasks``; results come in their order.

        :raises WorkerError: a worker died, or its code raised.
        """
        first = list(islice(tasks, self._workers))
        if not first:
            return
        self._executor = executor = ProcessPoolExecutor(
            len(first), multiprocessing.get_context("fork"), _begin, (self._encoder, os.getpid())
        )
        self._start(executor)
        try:
            yield from in_order(
                chain(first, tasks),
                lambda task: executor.submit(_encode, task.block).result,
                _LOOKAHEAD * len(first),
            )
        except BrokenProcessPool as error:
            raise self._death() from error

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def _start(self, executor: ProcessPoolExecutor) -> None:
        """Fork the workers, which the executor does for its first task."""
        others = set(multiprocessing.active_children())
        # Until a worker has said what signals do to it, none may reach it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED)
        try:
            with warnings.catch_warnings():
                # A library that was imported before may have threads. Workers use none of
                # them: they tokenize with single-threaded calls only.
                warnings.simplefilter("ignore", DeprecationWarning)
                executor.submit(int)
        except OSError as error:
            raise WorkerError(
                "a worker process cannot be started",
                evidence=f"{self._workers} were asked for: {error}",
                next=f"{AGAIN} with fewer --workers",
            ) from error
        finally:
            self._processes = {*multiprocessing.active_children()} - others
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _death(self) -> WorkerError:
        assert self._executor is not None
        self._executor.shutdown()
        # The executor ends the others by SIGTERM.
        dead = min(self._processes, key=lambda one: one.exitcode == -signal.SIGTERM)
        code = dead.exitcode
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exit status {code}"
        hint = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
        return WorkerError(
            "a worker process died",
            evidence=f"process {dead.pid}: {how}{hint}",
            next=f"{AGAIN}, with fewer --workers if memory is short",
        )


#: In a worker: what it encodes with.
_encoders: list[Encoder] = []


def _begin(encoder: Encoder, parent: int) -> None:
    """The first thing that a worker does. The parent decides when it ends, or its death does."""
    be_killed_with_parent(parent)
    # A terminal's Ctrl-C reaches the whole process group.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoders.append(encoder)


def _encode(block: Block) -> EncodedBlock | BridgeError:
    return encode_or_fail(_encoders[-1], block)


def encode_or_fail(encoder: Encoder, block: Block) -> EncodedBlock | BridgeError:
    """What a worker answers for ``block``, whatever happens."""
    try:
        return encoder.encode(block)
    except BridgeError as error:
        return error
    # Whatever it is, the parent must hear of it: a worker that just ended would say less.
    except Exception as error:
        trace = traceback.format_exc().splitlines()[-4:]
        return WorkerError(
            "a worker failed",
            evidence=(f"{type(error).__name__}: {error}", *trace),
            next="report this; --tokenizer-engine exact may get around it",
        )
