"""Blocks: units of work of a few MiB, small enough to bound memory, made of whole records."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .errors import InputError


class RangeBlock(NamedTuple):
    """Whole lines of an uncompressed file, read by the worker: bytes ``start`` to ``end``."""

    path: str
    start: int
    end: int


class LinesBlock(NamedTuple):
    """Whole lines, read (and decompressed) by the parent process."""

    data: bytes


class NoValue(NamedTuple):
    """Stands for the values of a row that cannot be distinguished."""

    reason: str


class RowsBlock(NamedTuple):
    """Rows of a table: for each key the values of its column, ``None`` where there is none.

    :param size: bytes of the text in them.
    """

    columns: dict[str, list[object]]
    size: int


Block: TypeAlias = RangeBlock | LinesBlock | RowsBlock


class Task(NamedTuple):
    """A block and where it comes from.

    :param number: its place in the whole input, from 0.
    :param source: index of its input file.
    """

    number: int
    source: int
    block: Block


def read_block(block: Block) -> tuple[LinesBlock | RowsBlock, int]:
    """The content of ``block`` and its size in bytes.

    :raises InputError: its file is shorter than it was.
    """
    if isinstance(block, RangeBlock):
        try:
            with open(block.path, "rb") as file:
                file.seek(block.start)
                data = file.read(block.end - block.start)
        except OSError as error:
            raise InputError(
                "an input file cannot be read any more",
                evidence=f"{block.path}: {error}",
                next="see whether it is still there and can be read, then run again",
            ) from error
        if len(data) < block.end - block.start:
            raise InputError(
                "an input file changed while it was read",
                evidence=f"{block.path}: it ends before byte {block.end} now",
                next="run again when nothing writes to it",
            )
        return LinesBlock(data), len(data)
    if isinstance(block, LinesBlock):
        return block, len(block.data)
    return block, block.size
