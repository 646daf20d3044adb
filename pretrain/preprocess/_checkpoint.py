"""What ``--resume`` needs to know, in one small file beside the partial output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from accel_bridge.process.outputs import write_output

from .encoder import EncodedBlock
from .errors import ResumeError
from .writer import SpoolSizes

_FORMAT = 1
CHECKPOINT_SUFFIX = ".preprocess.json"


def is_checkpoint(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is a checkpoint, or was to become one."""
    return not head or head.startswith(b'{"format": ')


@dataclass
class Progress:
    """Counts so far; all survive an interruption."""

    blocks: int = 0
    documents: int = 0
    records: int = 0
    skipped: int = 0
    input_bytes: int = 0
    error_log_bytes: int = 0
    engine_counts: dict[str, int] = field(default_factory=dict)
    #: Records seen in each source, by its index: gives line numbers to errors.
    source_records: dict[str, int] = field(default_factory=dict)

    def add(self, source: int, result: EncodedBlock) -> None:
        """Count one more block of the source with index ``source``."""
        self.blocks += 1
        self.documents += result.documents
        self.records += result.records
        self.skipped += len(result.bad) + result.left_out
        self.input_bytes += result.input_bytes
        for name, count in result.engine_counts.items():
            self.engine_counts[name] = self.engine_counts.get(name, 0) + count
        self.source_records[str(source)] = self.source_records.get(str(source), 0) + result.records


@dataclass(frozen=True)
class Checkpoint:
    """A state that the partial files can be cut back to."""

    settings: dict[str, object]
    progress: Progress
    spools: dict[str, list[SpoolSizes]]


class CheckpointFile:
    """``PREFIX.preprocess.json``."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(prefix + CHECKPOINT_SUFFIX)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the file in one step; what it refers to must be on disk already."""
        document = {"format": _FORMAT, **asdict(checkpoint)}
        write_output(self.path, json.dumps(document).encode())

    def load(self, settings: Mapping[str, object]) -> Checkpoint:
        """Read it back.

        :param settings: this run's settings, which must be those of the interrupted run.
        :raises ResumeError: there is none, it is damaged, or the settings differ.
        """
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']}")
            checkpoint = Checkpoint(
                settings=document["settings"],
                progress=Progress(**document["progress"]),
                spools={
                    key: [SpoolSizes(**size) for size in sizes]
                    for key, sizes in document["spools"].items()
                },
            )
        except FileNotFoundError as error:
            raise ResumeError(
                "there is nothing to resume",
                evidence=f"{self.path} does not exist",
                next="run the same command without --resume",
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ResumeError(
                "the checkpoint cannot be read",
                evidence=f"{self.path}: {type(error).__name__}: {error}",
                next="run the same command without --resume",
            ) from error
        wanted = json.loads(json.dumps(dict(settings)))
        changed = [name for name in wanted if wanted[name] != checkpoint.settings.get(name)]
        if changed:
            raise ResumeError(
                "the interrupted run had other settings or other input",
                evidence=[
                    f"{name}: then {checkpoint.settings.get(name)}, now {wanted[name]}"
                    for name in changed
                ],
                next="resume with the same command, or start anew without --resume",
            )
        return checkpoint

    def exists(self) -> bool:
        """Whether there is something to resume from."""
        return self.path.is_file()

    def remove(self) -> None:
        """Remove it, if it is there."""
        self.path.unlink(missing_ok=True)
