"""Tables: Parquet, CSV and TSV, read as columns of text."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from accel_bridge.process.extras import install

from .blocks import NoValue, RowsBlock
from .errors import InputError
from .inputs import Source, open_bytes

_DELIMITERS = {"csv": ",", "tsv": "\t"}
#: Rows read from a Parquet file at a time at most; fewer where they are long.
_PARQUET_ROWS = 4096


class _Rows:
    """Collects rows until they make a block."""

    def __init__(self, keys: Sequence[str], block_bytes: int) -> None:
        self._keys = keys
        self._limit = block_bytes
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, list[object]] = {key: [] for key in self._keys}
        self._size = 0

    def add(self, values: Sequence[object]) -> bool:
        """Add one row; ``True`` when it is time to :meth:`take`."""
        for key, value in zip(self._keys, values, strict=True):
            self._columns[key].append(value)
            self._size += _text_size(value)
        return self._size >= self._limit

    def take(self) -> RowsBlock:
        """The rows so far."""
        block = RowsBlock(self._columns, self._size)
        self._clear()
        return block

    def __bool__(self) -> bool:
        return bool(self._columns[self._keys[0]])


def csv_blocks(source: Source, keys: Sequence[str], block_bytes: int) -> Iterator[RowsBlock]:
    """Rows of a CSV or TSV file whose first line names its columns.

    Every cell is text, as it stands: no number, date or missing value is made of it.

    :raises InputError: a key is no column, or the file is no CSV.
    """
    # The default limit of 128 KiB is smaller than a long document.
    csv.field_size_limit(sys.maxsize)
    with open_bytes(source) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=_DELIMITERS[source.format], strict=True)
        try:
            header = next(reader, [])
            _check_columns(source, keys, header)
            positions = [header.index(key) for key in keys]
            rows = _Rows(keys, block_bytes)
            for row in reader:
                if row and rows.add(_values(row, len(header), positions)):
                    yield rows.take()
            if rows:
                yield rows.take()
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(
                f"a {source.format.upper()} file cannot be read",
                evidence=f"{source.name}:{reader.line_num}: {error}",
                next="save it as UTF-8 with quotes doubled inside quoted cells",
            ) from error


def _values(row: list[str], columns: int, positions: list[int]) -> list[object]:
    """The wanted cells; None where a short row ends before.

    With more cells than columns nobody knows which is which, unless they are empty.
    """
    if any(row[columns:]):
        reason = f"{len(row)} cells in a table of {columns} columns: quote text with delimiters"
        return [NoValue(reason)] * len(positions)
    return [row[place] if place < len(row) else None for place in positions]


def parquet_blocks(source: Source, keys: Sequence[str], block_bytes: int) -> Iterator[RowsBlock]:
    """Rows of a Parquet file; only the columns named by ``keys`` are read.

    :raises InputError: a key is no column, or the file is damaged.
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError(
            "reading Parquet needs pyarrow",
            evidence=f"{source.name}: {error}",
            next=install("preprocess"),
        ) from error
    with open_bytes(source) as file:
        # Parquet is read from its end: what is compressed as a whole must be in memory.
        seekable = source.path if source.compression is None else io.BytesIO(file.read())
        try:
            table = parquet.ParquetFile(seekable, pre_buffer=False, buffer_size=1 << 20)
            _check_columns(source, keys, table.schema_arrow.names)
            rows = _Rows(keys, block_bytes)
            batches = table.iter_batches(
                _batch_rows(table.metadata, block_bytes), columns=list(keys), use_threads=False
            )
            for batch in batches:
                columns = [batch.column(key).to_pylist() for key in keys]
                for values in zip(*columns, strict=True):
                    if rows.add(values):
                        yield rows.take()
            if rows:
                yield rows.take()
        except pyarrow.ArrowException as error:
            raise InputError(
                "a Parquet file cannot be read",
                evidence=f"{source.name}: {error}",
                next="check that it was written completely",
            ) from error


def _batch_rows(metadata: Any, block_bytes: int) -> int:
    """Rows that make about a block, by the file's own account of its row groups."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(_PARQUET_ROWS, block_bytes // max(longest, 1)))


def _check_columns(source: Source, keys: Sequence[str], columns: Sequence[str]) -> None:
    twice = [key for key in keys if columns.count(key) > 1]
    if twice:
        raise InputError(
            f"{source.name} has {columns.count(twice[0])} columns {twice[0]!r}",
            evidence=f"{source.name}: its columns are {', '.join(map(repr, columns))}",
            next="rename all but one of them",
        )
    missing = [key for key in keys if key not in columns]
    if missing:
        raise InputError(
            f"{source.name} has no column {missing[0]!r}",
            evidence=f"{source.name}: its columns are {', '.join(map(repr, columns)) or 'none'}",
            next="name one of them with --json-keys",
        )


def _text_size(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, list):
        return sum(map(_text_size, value))
    return 0
