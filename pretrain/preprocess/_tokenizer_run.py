"""``accel-bridge tokenizer train``: read the texts, train, write a folder that is whole or not."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accel_bridge.errors import printable
from accel_bridge.process.interrupts import ending_at_once
from accel_bridge.process.outputs import OutputError, check_output, mapped
from accel_bridge.process.streams import tell

from ._arguments import BLOCK_BYTES
from ._bad_record import bad_record
from ._tokenizer_arguments import TrainingArguments
from ._tokenizer_training import TRAINERS
from .errors import InputError
from .inputs import Source, find_sources
from .planner import plan
from .records import BadRecord, RecordReader


@dataclass
class Texts:
    """All texts of the input, counted as they are read."""

    sources: Sequence[Source]
    keys: Sequence[str]
    documents: int = 0
    #: Bytes of UTF-8.
    size: int = 0
    #: Records of the input file that is read.
    _before: dict[int, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        """Each text once; only once for standard input.

        :raises InputError: a record is bad.
        """
        reader = RecordReader(self.keys)
        for task in plan(self.sources, self.keys, BLOCK_BYTES):
            bad: list[BadRecord] = []
            records = reader.read(task.block, bad)
            before = self._before.get(task.source, 0)
            if bad:
                self._refuse(task.source, before, min(bad))
            self._before[task.source] = before + records.number
            self.documents += len(records.places)
            for column in records.columns.values():
                for text in column.sentences:
                    try:
                        self.size += len(text.encode())
                    except UnicodeEncodeError as error:
                        # In the block's first such record, wherever that is.
                        reason = f"a lone surrogate {text[error.start]!a} is not text"
                        raise InputError(
                            f"a bad record in {self.sources[task.source].name}",
                            evidence=f"{reason}: {text[:40]!a}",
                            next="fix it: JSON's \\u escapes of such characters come in pairs",
                        ) from error
                    if text:
                        yield text

    def _refuse(self, source: int, before: int, bad: BadRecord) -> None:
        raise bad_record(
            self.sources[source], before + bad.place + 1, bad, "or name other --json-keys"
        )


def train(arguments: TrainingArguments) -> int:
    """Train a tokenizer and say how it is used.

    :raises PreprocessError: the input or the size makes none.
    :raises OutputError: the folder holds something, or cannot be written.
    """
    start = time.perf_counter()
    folder = Path(arguments.output)
    _check_folder(folder)
    texts = Texts(find_sources(arguments.inputs, arguments.input_format), arguments.json_keys)
    with ending_at_once():
        trained = TRAINERS[arguments.kind](iter(texts), arguments.vocab_size, arguments.cased)
    if not texts.size:
        raise InputError(
            "the input holds no text to learn from",
            evidence=f"{texts.documents} documents in {' '.join(arguments.inputs)}",
            next="give --input files with text, and name its keys with --json-keys",
        )
    _write(folder, trained.files)
    if trained.size < arguments.vocab_size:
        tell(
            f"note: the text has no more than {trained.size} tokens in it, "
            f"{arguments.vocab_size} were asked for"
        )
    seconds = time.perf_counter() - start
    lines = (
        f"documents  {texts.documents:,}, {texts.size / 1e6:,.1f} MB of text",
        f"tokens     {trained.size:,}",
        f"files      {', '.join(str(folder / name) for name in trained.files)}",
        f"use        {trained.flags.replace('{}', str(folder))}",
        f"time       {seconds:.2f} s",
    )
    for line in lines:
        print(printable(line), flush=True)
    return 0


def _check_folder(folder: Path) -> None:
    with mapped(folder, "--output"):
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(
                "--output names a folder that holds files already.",
                evidence=f"{folder}: {', '.join(sorted(os.listdir(folder))[:5])}",
                next="give --output a new folder, or move those files away",
            )
        if not folder.is_dir() and os.path.lexists(folder):
            raise OutputError(
                "--output must name a folder.",
                evidence=f"{folder} is a file or a broken link",
                next="give --output a new folder",
            )
    check_output(folder / "tokenizer.json", option="--output", makes_folders=True)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write all files, then give their folder its name: it is whole or not there.

    :raises OutputError: it cannot be written, or something came into it meanwhile.
    """
    folder = folder.resolve()
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    with mapped(folder, "--output"):
        try:
            partial.mkdir(parents=True)
            for name, content in files.items():
                (partial / name).write_bytes(content)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
