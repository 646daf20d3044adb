"""Plain text: every file is one document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from .blocks import RowsBlock
from .errors import InputError
from .inputs import Source, open_bytes

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
