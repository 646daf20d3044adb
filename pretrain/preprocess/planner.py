"""Cutting the input into blocks, the same way every time: that is what makes a run resumable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from .blocks import Block, LinesBlock, RangeBlock, RowsBlock, Task
from .errors import InputError
from .inputs import Source, open_bytes
from .records import block_end

# Plain text: every file is one document.

#: Longer documents take gigabytes to tokenize, and are no documents.
MAX_BYTES: Final = 1 << 30


def text_blocks(source: Source, keys: Sequence[str]) -> Iterator[RowsBlock]:
    """The text of a file as the only document in it; a file without text has none.

    Line ends stay as they are; a byte order mark is no text.

    :raises InputError: it is not UTF-8, too long, or several keys are asked for.
    """
    if len(keys) > 1:
        raise InputError(
            "plain text has no keys to tell apart",
            evidence=f"{source.name} with --json-keys {' '.join(keys)}",
            next="name one key, or give a file with columns or JSON lines",
        )
    with open_bytes(source) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(
            "a plain text file is too long for one document",
            evidence=f"{source.name} holds more than {MAX_BYTES >> 20} MiB of text",
            next="split it into documents, a file each (split -C 100M FILE), or make JSON lines",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "a plain text file is not UTF-8",
            evidence=f"{source.name}: {error.reason} at byte {error.start + 1}",
            next="convert it: iconv -f ENCODING -t UTF-8 FILE",
        ) from error
    if text:
        yield RowsBlock({keys[0]: [text]}, len(data))


#: First guess of how far from a block's end a line ends.
_WINDOW_BYTES = 64 << 10
#: A line that is longer is no record: it would take several times its length of memory.
_LONGEST_LINE = 256 << 20


def plan(sources: Sequence[Source], keys: Sequence[str], block_bytes: int) -> Iterator[Task]:
    """Blocks of all sources, in order.

    :param keys: columns to read from tables.
    :param block_bytes: aimed-at size; a longer line makes a longer block.
    :raises InputError: a source cannot be read.
    """
    number = 0
    for index, source in enumerate(sources):
        for block in _blocks(source, keys, block_bytes):
            yield Task(number, index, block)
            number += 1


def _blocks(source: Source, keys: Sequence[str], block_bytes: int) -> Iterator[Block]:
    if source.format == "jsonl":
        if source.is_rereadable and source.compression is None:
            return _ranges(source, block_bytes)
        return _chunks(source, block_bytes)
    if source.format == "array":
        return _array(source, block_bytes)
    if source.format == "text":
        return text_blocks(source, keys)
    from ._tables import csv_blocks, parquet_blocks

    if source.format == "parquet":
        return parquet_blocks(source, keys, block_bytes)
    return csv_blocks(source, keys, block_bytes)


def _ranges(source: Source, block_bytes: int) -> Iterator[RangeBlock]:
    with open_bytes(source) as file:
        descriptor = file.fileno()
        start = 0
        while start < source.size:
            end = _range_end(descriptor, start, start + block_bytes, source)
            yield RangeBlock(source.path, start, end)
            start = end


def _array(source: Source, block_bytes: int) -> Iterator[LinesBlock]:
    """The records of one JSON list, as lines; the whole list is read at once.

    :raises InputError: it is no such list.
    """
    with open_bytes(source) as file:
        data = file.read()
    try:
        records = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(
            "an input file is no JSON list",
            evidence=f"{source.name}: {error}",
            next="fix it, or write one record a line",
        ) from error
    del data
    lines: list[bytes] = []
    size = 0
    for record in records:
        lines.append(orjson.dumps(record))
        size += len(lines[-1])
        if size >= block_bytes:
            yield LinesBlock(b"\n".join([*lines, b""]))
            lines, size = [], 0
    if lines:
        yield LinesBlock(b"\n".join([*lines, b""]))


def _range_end(descriptor: int, start: int, target: int, source: Source) -> int:
    """The last line end at or before ``target``, else the first after it, else the file's.

    :raises InputError: it is too far away.
    """
    size = source.size
    window = _WINDOW_BYTES
    low = max(start, target - window)
    high = target
    while high < size:
        cut = block_end(os.pread(descriptor, high - low, low))
        if cut:
            return low + cut
        low = max(start, low - window)
        high += window if low == start else 0
        window *= 2
        _check_length(high - start, source)
    _check_length(size - start, source)
    return size


def _check_length(found: int, source: Source) -> None:
    if found > _LONGEST_LINE:
        raise InputError(
            f"a line is longer than {_LONGEST_LINE >> 20} MiB",
            evidence=f"{source.path}: no line ends in {found:,} bytes",
            next="see whether it is text, one record a line, and decompresses to that",
        )


def _chunks(source: Source, block_bytes: int) -> Iterator[LinesBlock]:
    with open_bytes(source) as file:
        buffer = bytearray()
        wanted = block_bytes
        while True:
            data = file.read(max(wanted - len(buffer), 1))
            buffer += data
            if data and len(buffer) < wanted:
                continue
            cut = block_end(buffer) if data else len(buffer)
            if cut:
                yield LinesBlock(bytes(buffer[:cut]))
                del buffer[:cut]
                wanted = block_bytes
            elif data:
                wanted = 2 * len(buffer)
                _check_length(wanted, source)
            if not data:
                return
