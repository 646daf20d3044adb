"""The run: plan, encode, write, checkpoint, publish."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice

from accel_bridge._errors import BridgeError

from ._arguments import Arguments, parse
from ._blocks import Task
from ._checkpoint import Checkpoint, CheckpointFile, Progress
from ._engines import id_type
from ._error_log import ErrorLog
from ._errors import InputError, OutputError, ResumeError
from ._inputs import STANDARD_INPUT, Source, find_sources
from ._planner import plan
from ._pool import Finished, Pool, WorkerPool
from ._progress import Reporter, Summary
from ._recipe import EncoderRecipe
from ._signals import InterruptGuard
from ._tokenizers import TokenizerSpec, read_tokenizer
from ._tuning import measure_workers
from ._writer import KeyWriter, SpoolSizes

#: Seconds between checkpoints; each costs a few syncs.
CHECKPOINT_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """See :func:`accel_bridge.pretrain.preprocess.main`."""
    try:
        arguments = parse(argv)
        for note in arguments.notes:
            print(f"note: {note}", file=sys.stderr)
        for line in execute(arguments):
            print(line)
    except BridgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def execute(arguments: Arguments) -> Iterable[str]:
    """Do what ``arguments`` ask for; the lines are for the user.

    :raises PreprocessError: it cannot be finished; earlier output is unchanged.
    """
    sources = find_sources(arguments.inputs, arguments.input_format)
    spec = read_tokenizer(arguments.tokenizer)
    for note in spec.notes:
        print(f"note: {note}", file=sys.stderr)
    recipe = EncoderRecipe.of(arguments, spec)
    built = recipe.build()
    print(f"engine: {built.reason}", file=sys.stderr)
    if arguments.find_optimal_num_workers:
        return measure_workers(arguments, sources, built.encoder)
    if arguments.engine == "ray":
        from ._ray_engine import RayPool, connect

        # Ray sets handlers of its own for signals, so it comes before ours.
        connect(arguments.ray_address)
        make_pool: Callable[[], Pool] = partial(RayPool, recipe, arguments.workers)
    else:
        make_pool = partial(WorkerPool, built.encoder, arguments.workers)
    with InterruptGuard() as interrupts:
        return Run(arguments, sources, spec, interrupts).execute(make_pool).lines()


class Run:
    """One run's state: what has been written, and what to do when it ends early."""

    def __init__(
        self,
        arguments: Arguments,
        sources: Sequence[Source],
        spec: TokenizerSpec,
        interrupts: InterruptGuard,
    ) -> None:
        self._arguments = arguments
        self._sources = sources
        self._spec = spec
        self._interrupts = interrupts
        self._checkpoints = CheckpointFile(arguments.output_prefix)
        self._settings = _settings(arguments, sources, spec)
        self._progress = Progress()
        self._writers: dict[str, KeyWriter] = {}
        self._errors = ErrorLog(None, 0)
        self._last_checkpoint = time.monotonic()

    def execute(self, make_pool: Callable[[], Pool]) -> Summary:
        """Do it, with workers made by ``make_pool``."""
        self._open()
        start = Progress(**vars(self._progress))
        reporter = Reporter(_total_bytes(self._sources), self._arguments.log_interval, start)
        try:
            with closing(reporter), ExitStack() as stack:
                pool = stack.enter_context(closing(make_pool()))
                for finished in pool.run(self._tasks()):
                    with self._interrupts.shield():
                        self._take(finished)
                    reporter.update(self._progress)
            with self._interrupts.shield():
                self._publish()
        except BaseException as error:
            with self._interrupts.shield():
                self._abandon()
            if isinstance(error, OSError):
                raise OutputError(
                    "the output cannot be written",
                    evidence=f"{self._arguments.output_prefix}: {error}",
                    next="make room, then run the same command with --resume",
                ) from error
            raise
        return Summary(
            counts=self._progress,
            tokens={writer.prefix: writer.tokens for writer in self._writers.values()},
            seconds=reporter.seconds,
            resumed_blocks=start.blocks,
            resumed_bytes=start.input_bytes,
            resumed_documents=start.documents,
        )

    def _tasks(self) -> Iterator[Task]:
        tasks = plan(self._sources, self._arguments.json_keys, self._arguments.block_bytes)
        return islice(tasks, self._progress.blocks, None)

    def _open(self) -> None:
        """Open the partial files, at the checkpoint's sizes with ``--resume``."""
        spools: Mapping[str, Sequence[SpoolSizes]] = {}
        if self._arguments.resume:
            if self._reads_standard_input():
                raise ResumeError(
                    "standard input cannot be read again",
                    evidence="--resume with --input -",
                    next="save it to a file, or run without --resume",
                )
            checkpoint = self._checkpoints.load(self._settings)
            self._progress = checkpoint.progress
            spools = checkpoint.spools
        else:
            self._checkpoints.remove()
        dtype = id_type(self._spec.vocab_size)
        for key in self._arguments.json_keys:
            prefix = f"{self._arguments.output_prefix}_{key}_{self._arguments.level}"
            self._writers[key] = KeyWriter(
                prefix, dtype, self._arguments.output_partitions, spools.get(key)
            )
        self._errors = ErrorLog(self._arguments.error_log, self._progress.error_log_bytes)

    def _take(self, finished: Finished) -> None:
        """Write one block's result and count it."""
        self._refuse_or_log(finished)
        result = finished.result
        for key, tokens in result.keys.items():
            self._writers[key].append(tokens)
        self._progress.add(finished.source, result)
        if time.monotonic() - self._last_checkpoint >= CHECKPOINT_SECONDS:
            self._save_checkpoint()

    def _refuse_or_log(self, finished: Finished) -> None:
        source = self._sources[finished.source]
        first = self._progress.source_records.get(str(finished.source), 0) + 1
        unit = "line" if source.format == "jsonl" else "row"
        for bad in finished.result.bad:
            number = first + bad.place
            if self._arguments.on_error == "raise":
                where = (
                    f"{source.name}:{number}" if unit == "line" else f"{source.name} row {number}"
                )
                raise InputError(
                    f"a bad record in {where}",
                    evidence=[f"{where}: {bad.reason}"],
                    next="mend it, name other --json-keys, or add --on-error skip "
                    "--error-log FILE to leave such records out",
                )
            self._errors.add(
                {"file": source.name, unit: number, "key": bad.key, "reason": bad.reason}
            )
        self._progress.error_log_bytes = self._errors.size

    def _save_checkpoint(self) -> None:
        for writer in self._writers.values():
            writer.sync()
        self._errors.sync()
        spools = {key: writer.sizes for key, writer in self._writers.items()}
        self._checkpoints.save(Checkpoint(self._settings, self._progress, spools))
        self._last_checkpoint = time.monotonic()

    def _publish(self) -> None:
        for writer in self._writers.values():
            writer.prepare()
        for writer in self._writers.values():
            writer.publish()
        self._errors.close()
        self._checkpoints.remove()

    def _abandon(self) -> None:
        """After a failure: keep what ``--resume`` can use, remove what it cannot."""
        if self._progress.blocks and not self._reads_standard_input():
            try:
                self._save_checkpoint()
            except OSError as error:
                print(f"note: no new checkpoint could be written: {error}", file=sys.stderr)
            for writer in self._writers.values():
                writer.close()
        else:
            for writer in self._writers.values():
                writer.discard()
            self._checkpoints.remove()
        self._errors.close()

    def _reads_standard_input(self) -> bool:
        return any(source.path == STANDARD_INPUT for source in self._sources)


def _settings(
    arguments: Arguments, sources: Sequence[Source], spec: TokenizerSpec
) -> dict[str, object]:
    """Everything that the bytes of the output depend on."""
    return {
        "input": [source.identity() for source in sources],
        "json keys": list(arguments.json_keys),
        "tokenizer": spec.fingerprint,
        "append eod": arguments.append_eod,
        "sentences": [arguments.split_sentences, arguments.keep_newlines, arguments.lang],
        "partitions": arguments.output_partitions,
        "block bytes": arguments.block_bytes,
    }


def _total_bytes(sources: Sequence[Source]) -> int:
    """Size of the text to come, or 0 where only reading tells."""
    plain = all(source.format == "jsonl" and source.compression is None for source in sources)
    return sum(source.size for source in sources) if plain else 0
