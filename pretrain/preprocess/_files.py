"""Every file that a run makes or replaces, and a look at each before the run touches one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from accel_bridge.pretrain.indexed_data import MAGIC
from accel_bridge.process.outputs import check_output, is_lock, mapped

from ._arguments import Arguments
from ._checkpoint import CheckpointFile, is_checkpoint
from ._error_log import is_error_log, partial_path
from .errors import UsageError
from .writer import SPOOL_SUFFIXES

_PREFIX = "--output-prefix"


class Output(NamedTuple):
    """One file.

    :param option: what names it.
    :param made: how it starts if an earlier run made it, as :func:`check_output` takes it.
    """

    path: str
    option: str
    made: tuple[bytes, ...] | Callable[[bytes], bool] | None


def lock_path(prefix: str) -> str:
    """The file that is locked as long as a run writes there."""
    return prefix + ".preprocess.lock"


def stems(arguments: Arguments) -> dict[str, str]:
    """Path of each key's pair, without suffix."""
    prefix, level = arguments.output_prefix, arguments.level
    if arguments.handler is not None and not arguments.handler.is_text:
        prefix += "_packed"
    return {key: f"{prefix}_{key}_{level}" for key in arguments.json_keys}


def outputs(arguments: Arguments) -> Iterator[Output]:
    """Every file that the run makes or replaces."""
    if arguments.error_log is not None:
        yield Output(arguments.error_log, "--error-log", is_error_log)
        yield Output(partial_path(arguments.error_log), "--error-log", is_error_log)
    if arguments.find_optimal_num_workers:
        return
    yield Output(lock_path(arguments.output_prefix), _PREFIX, is_lock)
    notes = CheckpointFile(arguments.output_prefix)
    yield Output(str(notes.path), _PREFIX, is_checkpoint)
    parts = arguments.output_partitions
    collects = arguments.handler is not None and arguments.handler.pack
    for stem in stems(arguments).values():
        yield Output(stem + ".idx", _PREFIX, (MAGIC,))
        yield Output(stem + ".bin", _PREFIX, None)
        yield Output(stem + ".idx.partial", _PREFIX, None)
        for inner in (
            stem,
            *(f"{stem}.{part}" for part in range(parts if parts > 1 or collects else 0)),
        ):
            for suffix in SPOOL_SUFFIXES:
                yield Output(f"{inner}{suffix}.partial", _PREFIX, None)


def check_outputs(arguments: Arguments, inputs: Iterable[str]) -> None:
    """Refuse what would lose data, and what cannot be written; make the output's directory.

    :param inputs: every file that the run reads.
    :raises OutputError: before anything was changed.
    """
    read = list(inputs)
    if arguments.error_log is not None:
        log = os.path.realpath(arguments.error_log)
        if log in (
            os.path.realpath(one.path) for one in outputs(arguments) if one.option == _PREFIX
        ):
            raise UsageError(
                "--error-log names a file that --output-prefix needs",
                evidence=f"{arguments.error_log} with --output-prefix {arguments.output_prefix}",
                next="give --error-log another file",
            )
    for output in outputs(arguments):
        if os.path.islink(output.path) and output.path.endswith((".partial", ".lock")):
            with mapped(output.path, output.option):
                raise FileExistsError(f"{output.path} is a link, and this command makes no links")
        check_output(
            output.path,
            option=output.option,
            inputs=read,
            made=output.made,
            makes_directories=output.option == _PREFIX,
        )
    if not arguments.find_optimal_num_workers:
        with mapped(arguments.output_prefix, _PREFIX):
            for path in (arguments.output_prefix, *stems(arguments).values()):
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
