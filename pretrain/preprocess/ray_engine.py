"""``--engine ray``: blocks go to actors of a Ray cluster and come back in order.

The driver reads the input and writes the output, so nodes need neither a shared file system nor
the tokenizer's files, only this package. The bytes are those of a local run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from accel_bridge.errors import BridgeError
from accel_bridge.process.extras import install
from accel_bridge.process.log import tell

from ._pool import Finished, encode_or_fail, in_order
from ._recipe import EncoderRecipe
from .blocks import Block, Task, read_block
from .encoder import EncodedBlock, Encoder
from .errors import AGAIN, UsageError, WorkerError

#: Blocks given to an actor beforehand, so that it never waits for the driver.
_QUEUED_PER_ACTOR = 2


class _Actor:
    """One worker of the cluster; ``ray.remote`` makes an actor of it."""

    def __init__(self, recipe: EncoderRecipe) -> None:
        self._recipe = recipe
        self._encoder: Encoder | None = None

    def encode(self, block: Block) -> EncodedBlock | BridgeError:
        """Encode one block."""
        if self._encoder is None:
            try:
                self._encoder, _ = self._recipe.build()
            except BridgeError as error:
                return error
        return encode_or_fail(self._encoder, block)


def connect(address: str | None) -> None:
    """Join the cluster at ``address``, or the one that Ray finds, or a new local one.

    :raises UsageError: Ray is not installed, or there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "--engine ray needs Ray", evidence=str(error), next=install("ray")
        ) from error
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            "no Ray cluster can be reached",
            evidence=f"--ray-address {address}: {error}",
            next="start one with `ray start --head`, or correct --ray-address",
        ) from error


def _knock(address: str | None) -> None:
    """Fail at once where nothing listens; Ray itself tries for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _sensible_workers(asked: int, cpus: int) -> int:
    """An actor without a CPU never starts, and the blocks that it was given would wait for it."""
    if cpus < 1:
        raise UsageError(
            "the Ray cluster has no CPU for a worker",
            evidence=f"ray.cluster_resources(): {cpus} CPUs",
            next="add nodes with CPUs, or leave --engine ray out",
        )
    if asked > cpus:
        tell(f"note: --workers {asked} are more than the cluster's {cpus} CPUs; {cpus} are started")
    return min(asked, cpus)


class RayPool:
    """``workers`` actors, each with one CPU of the cluster, which has the last word on how many.

    :func:`connect` must have been called.

    :raises UsageError: the cluster has no CPU.
    """

    def __init__(self, recipe: EncoderRecipe, workers: int) -> None:
        import ray

        self._ray = ray
        remote = ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        workers = _sensible_workers(workers, int(ray.cluster_resources().get("CPU", 0)))
        self._actors: Sequence[Any] = [remote.remote(recipe) for _ in range(workers)]

    def run(self, tasks: Iterator[Task]) -> Iterator[Finished]:
        """Encode ``tasks``; results come in their order.

        :raises WorkerError: an actor died, or its code raised.
        """
        actors = cycle(self._actors)

        def start(task: Task) -> Callable[[], EncodedBlock | BridgeError]:
            # The content goes along: other machines may not have the file.
            content, _ = read_block(task.block)
            return partial(self._result, next(actors).encode.remote(content))

        return in_order(tasks, start, 2 * _QUEUED_PER_ACTOR * len(self._actors))

    def close(self) -> None:
        """End all actors at once and leave the cluster."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()

    def _result(self, reference: Any) -> EncodedBlock | BridgeError:
        try:
            found: EncodedBlock | BridgeError = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                "a worker of the Ray cluster died",
                evidence=str(error).splitlines()[0],
                next=f"look at `ray status`; then {AGAIN}",
            ) from error
        return found
