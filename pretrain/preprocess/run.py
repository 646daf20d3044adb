"""The run: plan, encode, write, checkpoint, publish."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from types import FrameType

from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.endings import ASKED
from accel_bridge.process.log import tell
from accel_bridge.process.outputs import OutputError, OutputLock, mapped

from ._arguments import Arguments, available_cpus
from ._checkpoint import Checkpoint, CheckpointFile, Progress
from ._error_log import ErrorLog
from ._files import check_outputs, lock_path, outputs, stems
from ._handler_encoder import ID, IGNORED, read_handler_tokenizer, template_of, token_ids
from ._pool import Finished, Pool, WorkerPool
from ._progress import Reporter, Summary
from ._recipe import EncoderRecipe
from .blocks import Task
from .encoder import Encoder
from .engines import id_type
from .errors import AGAIN, RESUME, Interrupted, ResumeError, UsageError
from .inputs import Source, bad_record, find_sources, with_arrays
from .packing import PackedKeyWriter
from .planner import plan
from .tokenizers import TokenizerSpec, read_tokenizer
from .writer import KeyWriter, SpoolSizes

# SIGINT, SIGTERM and SIGHUP end a run at once, but never in the middle of a write.


class InterruptGuard:
    """Turns SIGINT, SIGTERM and SIGHUP into :class:`Interrupted` while it is entered.

    Outside the main thread Python delivers no signals; there it does nothing.
    """

    def __init__(self) -> None:
        self._shielded = False
        self._pending: int | None = None
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            for number in ASKED:
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue  # a job in the background, or below `nohup`
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold a signal back until the end of this block."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._pending is not None:
            raise Interrupted(self._pending)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._shielded:
            self._pending = number
        else:
            raise Interrupted(number)


# ``--find-optimal-num-workers``: time a part of the input with several numbers of workers.


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


#: Seconds between checkpoints; each costs a few syncs.
CHECKPOINT_SECONDS = 5.0
#: More workers for each CPU only take memory.
_WORKERS_PER_CPU = 4


def main(arguments: Arguments) -> int:
    """Do it and print what came of it; see :func:`accel_bridge.pretrain.preprocess.main`."""
    for note in arguments.notes:
        tell(f"note: {note}")
    for line in execute(arguments):
        print(printable(line), flush=True)
    return 0


def execute(arguments: Arguments) -> Iterable[str]:
    """Do what ``arguments`` ask for; the lines are for the user.

    :raises PreprocessError: it cannot be finished; earlier output is unchanged.
    """
    _check_open_files(arguments)
    own = [output.path for output in outputs(arguments)]
    sources = find_sources(arguments.inputs, arguments.input_format, own)
    check_outputs(arguments, [*(source.path for source in sources), *arguments.tokenizer.files])
    template = None
    if arguments.handler is not None:
        sources = with_arrays(sources)
        template = template_of(arguments.handler)
        spec = read_handler_tokenizer(arguments.tokenizer, arguments.handler, template)
    else:
        spec = read_tokenizer(arguments.tokenizer)
    for note in spec.notes:
        tell(f"note: {note}")
    recipe = EncoderRecipe(arguments, spec, template)
    encoder, reason = recipe.build()
    tell(f"engine: {reason}")
    if arguments.find_optimal_num_workers:
        return measure_workers(arguments, sources, encoder)
    if arguments.engine == "ray":
        from .ray_engine import RayPool, connect

        # Ray sets handlers of its own for signals, so it comes before ours.
        connect(arguments.ray_address)
        make_pool: Callable[[], Pool] = partial(RayPool, recipe, arguments.workers)
    else:
        make_pool = partial(WorkerPool, encoder, _sensible_workers(arguments.workers))
    lock = OutputLock(lock_path(arguments.output_prefix), "--output-prefix")
    # Locked before anything is touched: another run's files are not this one's to remove.
    with InterruptGuard() as interrupts, lock:
        summary = Run(arguments, sources, spec, interrupts).execute(make_pool)
    if not summary.counts.documents:
        skipped = summary.counts.skipped
        tell(
            f"warning: all {skipped:,} records were skipped (--error-log FILE says why); nothing "
            "can be trained on this data"
            if skipped
            else "warning: the input holds no documents; nothing can be trained on this data"
        )
    return summary.lines()


def _sensible_workers(asked: int) -> int:
    """Not more processes than the CPUs can keep busy, whatever was asked for."""
    cpus = available_cpus()
    most = max(_WORKERS_PER_CPU * cpus, 1)
    if asked > most:
        tell(
            f"note: --workers {asked} are more than {cpus} CPUs can use; at most {most} are started"
        )
    return min(asked, most)


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
        #: Sizes of the partial files after the last block that went into all of them.
        self._sizes: dict[str, list[SpoolSizes]] = {}
        self._is_publishing = False
        self._errors = ErrorLog(None, 0)
        self._last_checkpoint = time.monotonic()

    def execute(self, make_pool: Callable[[], Pool]) -> Summary:
        """Do it, with workers made by ``make_pool``."""
        arguments = self._arguments
        try:
            with self._interrupts.shield(), mapped(arguments.output_prefix, "--output-prefix"):
                self._open()
        except BaseException:
            self._close(keep=arguments.resume)
            raise
        start = Progress(**vars(self._progress))
        try:
            with ExitStack() as stack:
                reporter = stack.enter_context(
                    closing(Reporter(_total_bytes(self._sources), arguments.log_interval, start))
                )
                pool = stack.enter_context(closing(make_pool()))
                for finished in pool.run(self._tasks()):
                    with self._interrupts.shield():
                        self._take(finished)
                    reporter.update(self._progress)
            with self._interrupts.shield():
                self._publish()
        except BaseException as error:
            ended = self._abandon(error)
            if ended is error:
                raise
            raise ended from error
        return Summary(
            counts=self._progress,
            start=start,
            tokens={writer.prefix: writer.tokens for writer in self._writers.values()},
            seconds=reporter.seconds,
        )

    def _tasks(self) -> Iterator[Task]:
        tasks = plan(self._sources, self._arguments.columns, self._arguments.block_bytes)
        return islice(tasks, self._progress.blocks, None)

    def _open(self) -> None:
        """Open the partial files, at the checkpoint's sizes with ``--resume``."""
        spools: Mapping[str, Sequence[SpoolSizes]] = {}
        if self._arguments.resume:
            if not self._can_be_read_again():
                raise ResumeError(
                    "standard input, or a pipe, cannot be read again",
                    evidence="--resume with --input "
                    + " ".join(source.path for source in self._sources),
                    next="save it to a file, or run without --resume",
                )
            checkpoint = self._checkpoints.load(self._settings)
            self._progress = checkpoint.progress
            spools = checkpoint.spools
        for key, stem in stems(self._arguments).items():
            self._writers[key] = self._writer(key, stem, spools.get(key))
        self._sizes = {key: writer.sizes for key, writer in self._writers.items()}
        self._errors = ErrorLog(self._arguments.error_log, self._progress.error_log_bytes)
        if not self._arguments.resume:
            self._checkpoints.remove()

    def _writer(self, key: str, stem: str, resume: Sequence[SpoolSizes] | None) -> KeyWriter:
        handler = self._arguments.handler
        if handler is None:
            dtype = id_type(self._spec.vocab_size)
            return KeyWriter(stem, dtype, self._arguments.output_partitions, resume)
        if not handler.pack or handler.seq_length is None:
            return KeyWriter(stem, ID, resume=resume)
        padding = {"input_ids": token_ids(self._spec).pad or 0, "labels": IGNORED}
        is_numbered = handler.neat_pack and key == "attention_mask"
        filler = padding.get(key, 0 if is_numbered else 1)
        return PackedKeyWriter(stem, handler.seq_length, filler, is_numbered, resume)

    def _take(self, finished: Finished) -> None:
        """Write one block's result and count it."""
        self._refuse_or_log(finished)
        result = finished.result
        for key, tokens in result.keys.items():
            self._writers[key].append(tokens)
        # Only now is the block whole: a disk may have been full half-way through it.
        self._progress.add(finished.source, result)
        self._progress.error_log_bytes = self._errors.size
        self._sizes = {key: writer.sizes for key, writer in self._writers.items()}
        if time.monotonic() - self._last_checkpoint >= CHECKPOINT_SECONDS:
            self._save_checkpoint()

    def _refuse_or_log(self, finished: Finished) -> None:
        source = self._sources[finished.source]
        first = self._progress.source_records.get(str(finished.source), 0) + 1
        unit = "line" if source.format == "jsonl" else "row"
        for bad in finished.result.bad:
            number = first + bad.place
            if self._arguments.on_error == "raise":
                raise bad_record(
                    source,
                    number,
                    bad,
                    "name other --json-keys, or add --on-error skip --error-log FILE to leave "
                    "such records out",
                )
            self._errors.add(
                {"file": source.name, unit: number, "key": bad.key, "reason": bad.reason}
            )

    def _save_checkpoint(self) -> None:
        for writer in self._writers.values():
            writer.sync()
        self._errors.sync()
        self._checkpoints.save(Checkpoint(self._settings, self._progress, self._sizes))
        self._last_checkpoint = time.monotonic()

    def _publish(self) -> None:
        for writer in self._writers.values():
            writer.prepare()
        self._is_publishing = True
        for writer in self._writers.values():
            writer.publish()
        self._errors.publish()
        self._checkpoints.remove()

    def _abandon(self, error: BaseException) -> BaseException:
        """After a failure: keep what ``--resume`` can use, remove what it cannot.

        :returns: the error for the user; it advises ``--resume`` only where that works.
        """
        if isinstance(error, OSError):
            error = OutputError(
                "the output cannot be written",
                evidence=f"{self._arguments.output_prefix}: {error}",
                next=f"make room, then {AGAIN}",
            )
        try:
            with self._interrupts.shield():
                self._close(keep=self._keep())
        except Interrupted as second:
            error = second
        if isinstance(error, BridgeError) and self._checkpoints.exists():
            error.next = error.next.replace(AGAIN, RESUME)
        return error

    def _keep(self) -> bool:
        """Save what has been done; whether there is something to keep."""
        if self._is_publishing or not self._progress.blocks or not self._can_be_read_again():
            return False
        try:
            for key, writer in self._writers.items():
                writer.cut(self._sizes[key])
            self._save_checkpoint()
        except (OSError, OutputError) as error:
            tell(f"note: no new checkpoint could be written: {error}")
        return self._checkpoints.exists()

    def _close(self, *, keep: bool) -> None:
        """Close all files; without ``keep`` the partial ones and the checkpoint go."""
        written: list[KeyWriter | ErrorLog] = [*self._writers.values(), self._errors]
        for one in written:
            if keep:
                one.close()
            else:
                one.discard()
        if not keep and self._writers:
            self._checkpoints.remove()

    def _can_be_read_again(self) -> bool:
        return all(source.is_rereadable for source in self._sources)


def _check_open_files(arguments: Arguments) -> None:
    """Every key has three files, and three more for each partition."""
    parts = arguments.output_partitions
    needed = 3 * len(arguments.json_keys) * (1 + (parts if parts > 1 else 0))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > allowed - 64:
        raise UsageError(
            f"--partitions {parts} needs more open files than this process may have",
            evidence=f"{needed} files are needed, {allowed} allowed (ulimit -n)",
            next=f"ulimit -n {needed + 64}, or fewer --partitions",
        )


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
        "handler": arguments.handler.identity() if arguments.handler else None,
        "block bytes": arguments.block_bytes,
    }


def _total_bytes(sources: Sequence[Source]) -> int:
    """Size of the text to come, or 0 where only reading tells."""
    plain = all(source.format == "jsonl" and source.compression is None for source in sources)
    return sum(source.size for source in sources) if plain else 0
