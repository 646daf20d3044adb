"""``--find-optimal-num-workers``: time a part of the input with several numbers of workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from ._arguments import Arguments
from ._pool import WorkerPool
from .encoder import Encoder
from .errors import UsageError
from .inputs import Source
from .planner import plan


def measure_workers(
    arguments: Arguments, sources: Sequence[Source], encoder: Encoder
) -> Iterator[str]:
    """Lines that say how fast each number of workers is, fastest first. Nothing is written.

    Numbers that ``--partitions`` does not divide are left out, as Megatron does.

    :raises UsageError: none is left.
    """
    candidates = [n for n in arguments.workers_to_check if n % arguments.partitions == 0]
    if not candidates:
        raise UsageError(
            "no number of workers is divisible by the number of partitions",
            evidence=f"--workers-to-check {' '.join(map(str, arguments.workers_to_check))}, "
            f"--partitions {arguments.partitions}",
            next="choose multiples of --partitions",
        )
    rates = {count: _rate(arguments, sources, encoder, count) for count in candidates}
    ordered = sorted(rates, key=rates.__getitem__, reverse=True)
    yield "Performance results (fastest to slowest):"
    for place, count in enumerate(ordered, start=1):
        yield f"{place}. {count} workers: {rates[count]:.1f} docs/s"
    yield f"The most optimal num of workers is {ordered[0]}."


def _rate(arguments: Arguments, sources: Sequence[Source], encoder: Encoder, workers: int) -> float:
    documents = 0
    tasks = plan(sources, arguments.json_keys, arguments.block_bytes)
    with closing(WorkerPool(encoder, workers)) as pool:
        start = time.perf_counter()
        for finished in pool.run(tasks):
            documents += finished.result.documents
            if arguments.max_documents is not None and documents >= arguments.max_documents:
                break
        return documents / max(time.perf_counter() - start, 1e-9)
