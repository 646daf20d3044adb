"""Trainings that start side by side and are measured one after the other.

A short training spends most of its time on imports, start and compilation. Here the trainings of a
batch do all that together, then each one has its GPUs to itself while it is measured, and meanwhile
the next batch imports its libraries on processor cores of its own. A training asks for each turn
with a file of each rank and goes on when the file of the turn is there:

- ``load``: libraries are imported; next, memory and time of the GPUs are taken;
- ``measure``: the first steps are done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from threading import Lock, Thread

#: Variables of a rank: directory of its training's files, cores before and after ``load``.
DIRECTORY, IMPORTING, OWN = "BENCH_TURN", "BENCH_IMPORTING", "BENCH_CORES"
#: Steps of a training before it asks to be measured.
FIRST_STEPS = 2
#: Seconds between two looks.
_PAUSE = 0.02


def wait(turn: str) -> None:
    """In a rank: ask for a turn and wait for it."""
    directory = Path(os.environ[DIRECTORY])
    (directory / f"{turn}.{os.environ['RANK']}").touch()
    while not (directory / turn).exists():
        time.sleep(_PAUSE)


def use_cores(variable: str) -> None:
    """In a rank: run on the cores that a variable names, one list for each rank."""
    lists = os.environ.get(variable, "").split(";")
    chosen = lists[int(os.environ["LOCAL_RANK"]) % len(lists)]
    if not chosen:
        return
    cores = {int(core) for core in chosen.split(",")}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def wait_before_step(module: object, synchronize: Callable[[], None]) -> None:
    """In a rank: ``module.train_step``, Megatron's, waits for ``measure`` after the first steps."""
    real = module.train_step  # type: ignore[attr-defined]
    steps = 0

    def train_step(*args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal steps
        if steps == FIRST_STEPS:
            synchronize()  # a collective that waits for another rank would keep the GPU busy
            wait("measure")
        steps += 1
        return real(*args, **kwargs)

    module.train_step = train_step  # type: ignore[attr-defined]


@dataclass
class Training:
    """One training: a command of ``processes`` ranks, with its log.

    :param limit: seconds for loading, and again for the measured steps.
    :param gigabytes: memory that it is expected to take of each GPU.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    processes: int
    log: Path
    limit: float
    gigabytes: float = 0.0
    directory: Path = field(init=False)
    _process: subprocess.Popen[bytes] | None = None

    def start(self, gpus: Sequence[int], cores: Cores) -> None:
        """Start it on these GPUs; it stops before ``load``."""
        self.directory = self.log.with_suffix(".turns")
        self.directory.mkdir(parents=True, exist_ok=True)
        for old in self.directory.iterdir():
            old.unlink()
        environment = dict(self.environment)
        environment[DIRECTORY] = str(self.directory)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(_name_of, gpus))
        environment[IMPORTING] = cores.importing
        environment[OWN] = ";".join(cores.own[gpu] for gpu in gpus)
        with self.log.open("w") as file:
            self._process = subprocess.Popen(
                self.command,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def give(self, turn: str) -> None:
        """Let all ranks take a turn."""
        (self.directory / turn).touch()

    def wait_until(self, turn: str) -> bool:
        """Whether all ranks asked for a turn before the training ended or ran out of time."""
        assert self._process is not None
        deadline = time.monotonic() + self.limit
        while len(list(self.directory.glob(f"{turn}.*"))) < self.processes:
            if self._process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                self.end(f"no {turn} within {self.limit:.0f} s")
                return False
            time.sleep(_PAUSE)
        return True

    def end(self, why: str = "") -> None:
        """Wait until its processes are gone, or kill them when there is a reason."""
        assert self._process is not None
        if not why:
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                why = "it did not end after its last step"
        if why:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            with self.log.open("a") as file:
                file.write(f"\nError: {why}\n")


def _name_of(gpu: int) -> str:
    """How a GPU is called: the one at this place among those that this process may use."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",")[gpu] if names else str(gpu)


@dataclass
class Cores:
    """Which processor cores do what: a share for imports, and a share for each GPU's rank."""

    importing: str
    own: list[str]

    @classmethod
    def of(cls, gpus: int, imports: bool = True) -> Cores:
        """A quarter of this process's cores imports; none are divided where there are too few.

        :param imports: false where trainings have imported everything when they start.
        """
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) * (3 if imports else 4) // 4 // gpus
        if not share:
            return cls("", [""] * gpus)
        own = [cores[gpu * share : (gpu + 1) * share] for gpu in range(gpus)]
        rest = cores[gpus * share :] if imports else []
        return cls(",".join(map(str, rest)), [",".join(map(str, one)) for one in own])


def run_all(
    groups: Sequence[Sequence[Training]],
    gpus: int,
    together: Mapping[int, int],
    ended: Callable[[Training], None],
    within: float = float("inf"),
    memory: float = float("inf"),
    imports: bool = True,
) -> None:
    """Run groups of trainings: those of most GPUs, ..., those of one GPU on ``gpus`` side by side.

    The trainings of a group have the same number of processes and run on the same GPUs.

    :param together: GPUs of a training -> how many of them load together.
    :param ended: called for each, also for one that failed.
    :param within: seconds after which no batch is started.
    :param memory: gigabytes that those which load together may take of each GPU.
    :param imports: whether trainings import their libraries while others are measured.
    """
    deadline = time.monotonic() + within
    for processes in sorted({group[0].processes for group in groups}, reverse=True):
        waiting = [list(group) for group in groups if group[0].processes == processes]
        total = max(gpus, processes)
        cores = Cores.of(total, imports)
        places = [list(range(at, at + processes)) for at in range(0, total, processes)]
        places = [place for place in places if len(place) == processes]
        shared = (waiting, Lock(), together.get(processes, 1), memory, deadline)
        threads = [
            Thread(target=_work, args=(_batches(*shared), place, cores, ended)) for place in places
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _fit(trainings: Sequence[Training], size: int, memory: float) -> int:
    """How many of the first may load together; at least one."""
    sums = accumulate(training.gigabytes for training in trainings[:size])
    return max(1, sum(used <= memory for used in sums))


def _batches(
    waiting: list[list[Training]], lock: Lock, size: int, memory: float, deadline: float
) -> Iterator[list[Training]]:
    """Batches of one group after another, until none is left or the time is over.

    Groups that fit beside the first load with it; one that does not fit is divided.
    """
    while True:
        batch: list[Training] = []
        with lock:
            for group in waiting[:]:
                joined = [*batch, *group]
                if not batch or _fit(joined, size, memory) == len(joined):
                    batch = joined
                    waiting[:] = [other for other in waiting if other is not group]
        if not batch:
            return
        while batch:
            if time.monotonic() > deadline:
                return
            fits = _fit(batch, size, memory)
            yield batch[:fits]
            batch = batch[fits:]


def _work(
    batches: Iterator[list[Training]],
    gpus: Sequence[int],
    cores: Cores,
    ended: Callable[[Training], None],
) -> None:
    """Run batches; each is started while the one before it is measured."""

    def start() -> list[Training]:
        batch = next(batches, [])
        for training in batch:
            training.start(gpus, cores)
        return batch

    batch = start()
    while batch:
        for training in batch:
            if training.wait_until("load"):
                training.give("load")
        ready = [training for training in batch if training.wait_until("measure")]
        following = start()
        for training in ready:
            training.give("measure")
            training.wait_until("done")
        for training in batch:
            training.end()
            ended(training)
        batch = following
